{{/* Values that contradict each other, which a schema cannot say. */}}
{{- define "edgeloop.checks" -}}
{{- $values := .Values -}}
{{- $secret := `^\w+://[^:/@\s]*:[^/@\s]+@|(?i:AccountKey|SharedAccessSignature|sig)=` -}}
{{- range $key := list "url" "blobs" -}}
{{- if regexMatch $secret (get $values.store $key) -}}
{{- fail (printf "store.%s holds a password or a key: put it into a Secret and name that in secret" $key) -}}
{{- end -}}
{{- end -}}
{{- if regexMatch `(?i:AccountKey|SharedAccessSignature|password|sig)=|\w+://[^:/@\s]*:[^/@\s]+@` (toJson $values.settings) -}}
{{- fail "settings holds a password or a key: put it into store.secret" -}}
{{- end -}}
{{- if not (or $values.store.secret $values.store.url) }}{{ fail "store needs a secret or a url" }}{{ end -}}
{{- if and $values.store.create (not $values.store.secret) -}}
{{- fail "store.create needs a name: store.secret" -}}
{{- end -}}
{{- if and (eq $values.runner.scaler.type "metrics-api") (not $values.portal.enabled) -}}
{{- fail "the scaler metrics-api asks the portal: set portal.enabled to true" -}}
{{- end -}}
{{- if and (eq $values.runner.scaler.type "postgresql") (not $values.store.secret) -}}
{{- fail "the scaler postgresql needs store.secret, with its connection" -}}
{{- end -}}
{{- if and $values.portal.enabled (not $values.portal.tokenSecret) }}{{ fail "the portal needs portal.tokenSecret" }}{{ end -}}
{{- if and $values.portal.token (lt (len $values.portal.token) 16) -}}
{{- fail "portal.token must have 16 characters or more" -}}
{{- end -}}
{{- if and $values.store.create $values.portal.token (eq $values.store.secret $values.portal.tokenSecret) -}}
{{- fail "store.secret and portal.tokenSecret must be two Secrets to be created" -}}
{{- end -}}
{{- $names := list -}}
{{- range $experiment := $values.experiments -}}
{{- if has $experiment.name $names }}{{ fail "experiments has one twice" }}{{ end -}}
{{- $names = append $names $experiment.name -}}
{{- $runner := include "edgeloop.runner" (dict "root" $ "experiment" $experiment) | fromJson -}}
{{- if and (eq $runner.mode "job") (gt (int $runner.minReplicas) 0) -}}
{{- fail (printf "minReplicas of experiment %s must be 0 in mode job, whose runners end when nothing is left: for runners that stay, set mode: deployment" $experiment.name) -}}
{{- end -}}
{{- if gt (int $runner.minReplicas) (int $runner.maxReplicas) -}}
{{- fail (printf "minReplicas of experiment %s is above maxReplicas" $experiment.name) -}}
{{- end -}}
{{- $dataset := ternary $experiment.dataset $values.dataset (kindIs "map" $experiment.dataset) -}}
{{- if and $dataset.claim $dataset.pull }}{{ fail "dataset has both claim and pull: give one of them" }}{{ end -}}
{{- if gt (len (printf "%s-runner-%s" $.Release.Name (include "edgeloop.slug" $experiment.name))) 52 -}}
{{- fail (printf "the names of the runners of experiment %s are too long: choose a shorter name for the release" $experiment.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
