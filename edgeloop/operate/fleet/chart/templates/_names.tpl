{{/* An experiment's name as part of an object's name; two experiments never have the same. */}}
{{- define "edgeloop.slug" -}}
{{- $plain := lower . | replace "_" "-" | trimAll "-" -}}
{{- if and (eq $plain .) (le (len $plain) 30) -}}
{{ $plain }}
{{- else -}}
{{ trunc 23 $plain | trimAll "-" }}-{{ sha256sum . | trunc 6 }}
{{- end -}}
{{- end -}}

{{/* Labels that never change as long as the objects exist: root, component, experiment. */}}
{{- define "edgeloop.selector" -}}
app.kubernetes.io/name: edgeloop
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .experiment }}
edgeloop/experiment: {{ include "edgeloop.slug" . | quote }}
{{- end }}
{{- end -}}

{{/* The metadata of an object: root, suffix or name, component, experiment. */}}
{{- define "edgeloop.metadata" -}}
{{- $name := .root.Release.Name -}}
{{- with .suffix }}{{ $name = printf "%s-%s" $name . }}{{ end -}}
name: {{ .name | default $name | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "edgeloop.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "edgeloop.account" -}}
{{- $own := .Values.serviceAccount -}}
{{- $own.name | default (ternary .Release.Name "default" $own.create) -}}
{{- end -}}

{{- define "edgeloop.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* edgeloop.yaml of all pods: JSON is YAML. */}}
{{- define "edgeloop.settings" -}}
{{ toPrettyJson .Values.settings }}
{{ end -}}

{{/* What `runner` says, changed by what an experiment says itself, as JSON: root, experiment. */}}
{{- define "edgeloop.runner" -}}
{{- $runner := deepCopy .root.Values.runner -}}
{{- range $key, $value := omit .experiment "name" "dataset" -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $runner $key $value }}{{ end -}}
{{- end -}}
{{- toJson $runner -}}
{{- end -}}
