{{/* How KEDA learns how much work waits: root, experiment, named. */}}
{{- define "edgeloop.triggers" -}}
{{- $root := .root -}}
{{- $experiment := .experiment.name -}}
{{- $runner := include "edgeloop.runner" . | fromJson -}}
{{- $capabilities := include "edgeloop.capabilities" $runner | fromJsonArray -}}
{{- $target := int $runner.stagesPerRunner | quote -}}
{{- if eq $runner.scaler.type "postgresql" -}}
{{- $kinds := list -}}
{{- range $name := $capabilities -}}
{{- $parts := ternary (list "quantize" "onnx") (list "device" "device-accuracy" "device-float") (eq $name "linux") -}}
{{- $pin := ternary "" (printf "@%s" $name) (or (eq $name "linux") (eq $name "device")) -}}
{{- range $parts }}{{ $kinds = append $kinds (printf "starts_with(key, '%s%s|')" . $pin) }}{{ end -}}
{{- end -}}
- type: postgresql
  authenticationRef: {name: {{ printf "%s-queue" $root.Release.Name | quote }}}
  metadata:
    query: {{ printf "SELECT count(*) FROM edgeloop_rows WHERE space = 'queue/%s' AND (%s)" $experiment (join " OR " $kinds) | quote }}
    targetQueryValue: {{ $target }}
{{- else -}}
{{- range $index, $name := $capabilities }}
- type: metrics-api
  {{- if $.named }}
  name: queue{{ $index }}
  {{- end }}
  authenticationRef: {name: {{ printf "%s-queue" $root.Release.Name | quote }}}
  metadata:
    # KEDA takes a missing number for an error, so the portal is told which one is asked for.
    url: {{ printf "http://%s-portal.%s.svc:%d/api/queue?experiment=%s&capability=%s" $root.Release.Name $root.Release.Namespace (int $root.Values.portal.port) $experiment (urlquery $name) | quote }}
    format: json
    valueLocation: {{ printf "%s.wanted" (replace "." `\.` $name) | quote }}
    targetValue: {{ $target }}
    authMode: bearer
{{- end }}
{{- end -}}
{{- end -}}

{{/* The lines of `edgeloop queue` that the runners follow, as JSON. */}}
{{- define "edgeloop.capabilities" -}}
{{- if .capabilities -}}
{{ toJson .capabilities }}
{{- else if .device -}}
{{ toJson (list "linux" "device" .device) }}
{{- else -}}
["linux"]
{{- end -}}
{{- end -}}
