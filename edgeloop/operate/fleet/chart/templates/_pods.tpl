{{/* What all containers have in common: root, name, placement, variables. */}}
{{- define "edgeloop.container" -}}
{{- $values := .root.Values -}}
name: {{ .name }}
image: {{ include "edgeloop.image" .root | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
env:
  - name: EDGELOOP_NODE
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  # The image's working folder is the project; a runner wants a folder for itself.
  - name: EDGELOOP_WORKDIR
    value: /work/runner
  {{- with $values.store.url }}
  - name: EDGELOOP_STORE
    value: {{ . | quote }}
  {{- end }}
  {{- with $values.store.blobs }}
  - name: EDGELOOP_BLOBS
    value: {{ . | quote }}
  {{- end }}
  {{- with .variables }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .placement.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.store.secret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: work, mountPath: /work}
  - {name: settings, mountPath: /work/edgeloop.yaml, readOnly: true, subPath: edgeloop.yaml}
{{- end -}}

{{/* What all pods have in common, but for their containers: root, placement. */}}
{{- define "edgeloop.pod" -}}
serviceAccountName: {{ include "edgeloop.account" .root | quote }}
automountServiceAccountToken: false
# A Service named edgeloop-portal would set EDGELOOP_PORTAL_… in every pod.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $.placement $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .placement.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "edgeloop.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 5Gi}
- name: work
  emptyDir: {sizeLimit: {{ .size | quote }}}
- name: settings
  configMap: {name: {{ printf "%s-settings" .root.Release.Name | quote }}}
{{- end -}}

{{/* root, placement, selector (text), annotations. */}}
{{- define "edgeloop.podMetadata" -}}
{{- $labels := deepCopy .placement.podLabels -}}
{{- if .root.Values.serviceAccount.azureClientId }}{{ $_ := set $labels "azure.workload.identity/use" "true" }}{{ end -}}
{{- range $key, $value := fromYaml .selector }}{{ $_ := set $labels $key $value }}{{ end -}}
{{- $annotations := .annotations -}}
{{- $_ := set $annotations "edgeloop/settings" (include "edgeloop.settings" .root | sha256sum) -}}
{{- range $key, $value := .placement.podAnnotations }}{{ $_ := set $annotations $key $value }}{{ end -}}
labels: {{- toYaml $labels | nindent 2 }}
annotations: {{- toYaml $annotations | nindent 2 }}
{{- end -}}

{{/* The template of an experiment's runners: root, experiment. */}}
{{- define "edgeloop.runnerPod" -}}
{{- $root := .root -}}
{{- $experiment := .experiment.name -}}
{{- $runner := include "edgeloop.runner" . | fromJson -}}
{{- $dataset := ternary .experiment.dataset $root.Values.dataset (kindIs "map" .experiment.dataset) -}}
{{- $variables := list (dict "name" "EDGELOOP_EXPERIMENT" "value" $experiment) (dict "name" "EDGELOOP_HEALTH" "value" "/tmp/edgeloop-health") -}}
{{- if $runner.snpeClaim }}{{ $variables = append $variables (dict "name" "SNPE_ROOT" "value" "/opt/snpe") }}{{ end -}}
{{- $words := list "runner" -}}
{{- if eq $runner.mode "job" }}{{ $words = concat $words (list "--drain" "--ok-if-errors") }}{{ end -}}
{{- $words = concat $words (list "--grace" (sub (int $runner.graceSeconds) 15 | toString)) -}}
{{- if $runner.cpus }}{{ $words = concat $words (list "--cpus" (int $runner.cpus | toString)) }}{{ end -}}
{{- if $runner.device }}{{ $words = concat $words (list "--device" $runner.device) }}{{ end -}}
{{- if or $dataset.claim $dataset.pull }}{{ $words = concat $words (list "--dataset" "/data") }}{{ end -}}
{{- $words = concat $words $runner.args -}}
{{- $selector := include "edgeloop.selector" (dict "root" $root "component" "runner" "experiment" $experiment) -}}
{{- $annotations := dict "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" "karpenter.sh/do-not-disrupt" "true" -}}
metadata:
  {{- include "edgeloop.podMetadata" (dict "root" $root "placement" $runner "selector" $selector "annotations" $annotations) | nindent 2 }}
spec:
  {{- include "edgeloop.pod" (dict "root" $root "placement" $runner) | nindent 2 }}
  {{- if eq $runner.mode "job" }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ int $runner.graceSeconds }}
  topologySpreadConstraints:
    - maxSkew: {{ int $runner.spread.maxSkew }}
      topologyKey: {{ $runner.spread.topologyKey | quote }}
      whenUnsatisfiable: {{ $runner.spread.whenUnsatisfiable }}
      labelSelector:
        matchLabels: {{- include "edgeloop.selector" (dict "root" $root "component" "runner") | nindent 10 }}
  {{- if $dataset.pull }}
  initContainers:
    - {{- include "edgeloop.container" (dict "root" $root "name" "dataset" "placement" $runner "variables" list) | nindent 6 }}
        - {name: dataset, mountPath: /data}
      args: [data, pull, {{ $dataset.pull | quote }}, --output, /data]
      resources:
        requests: {cpu: 100m, memory: 256Mi}
        limits: {memory: 1Gi}
  {{- end }}
  containers:
    - {{- include "edgeloop.container" (dict "root" $root "name" "runner" "placement" $runner "variables" $variables) | nindent 6 }}
        {{- if or $dataset.claim $dataset.pull }}
        - name: dataset
          mountPath: /data
          readOnly: true
          {{- if and $dataset.claim $dataset.subPath }}
          subPath: {{ $dataset.subPath | quote }}
          {{- end }}
        {{- end }}
        {{- if $runner.snpeClaim }}
        - {name: snpe, mountPath: /opt/snpe, readOnly: true}
        {{- end }}
      args: {{- toYaml $words | nindent 8 }}
      livenessProbe:
        exec: {command: [edgeloop, health]}
        initialDelaySeconds: 15
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 4
      readinessProbe:
        exec: {command: [edgeloop, health, --ready]}
        initialDelaySeconds: 15
        periodSeconds: 15
        timeoutSeconds: 10
        failureThreshold: 3
      resources: {{- toYaml $runner.resources | nindent 8 }}
  volumes:
    {{- include "edgeloop.volumes" (dict "root" $root "size" $runner.workSize) | nindent 4 }}
    {{- if $dataset.claim }}
    - name: dataset
      persistentVolumeClaim: {claimName: {{ $dataset.claim | quote }}, readOnly: true}
    {{- else if $dataset.pull }}
    - name: dataset
      emptyDir: {sizeLimit: {{ $dataset.size | default $root.Values.dataset.size | quote }}}
    {{- end }}
    {{- with $runner.snpeClaim }}
    - name: snpe
      persistentVolumeClaim: {claimName: {{ . | quote }}, readOnly: true}
    {{- end }}
{{- end -}}
