{{/* How KEDA learns how much work waits: root, experiment, named. */}}
{{- define "edgeloop.triggers" -}}
{{- $root := .root -}}
{{- $experiment := .experiment.name -}}
{{- $runner := include "edgeloop.runner" . | fromJson -}}
{{- $capabilities := include "edgeloop.capabilities" . | fromJsonArray -}}
{{- $target := int $runner.stagesPerRunner | quote -}}
{{- if eq $runner.scaler.type "postgresql" -}}
{{- $kinds := list -}}
{{- range $name := $capabilities -}}
{{- $toolchain := ternary (trimPrefix "convert " $name) "" (hasPrefix "convert " $name) -}}
{{- $parts := ternary (list "quantize" "onnx") (list "device" "device-accuracy" "device-float") (eq $name "linux") -}}
{{- $pin := ternary "" (printf "@%s" $name) (or (eq $name "linux") (eq $name "device")) -}}
{{- if $toolchain }}{{ $parts = list "quantize" }}{{ $pin = printf "@%s" $toolchain }}{{ end -}}
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

{{/* The lines of `edgeloop queue` that the runners follow, as JSON: root, experiment. A pod that is
     started for what its image cannot do ends at once, and is started again and again. */}}
{{- define "edgeloop.capabilities" -}}
{{- $runner := include "edgeloop.runner" . | fromJson -}}
{{- $names := list "linux" -}}
{{- range $toolchain := include "edgeloop.toolchains" . | fromJsonArray -}}
{{- $names = append $names (printf "convert %s" $toolchain) -}}
{{- end -}}
{{- with $runner.device }}{{ $names = concat $names (list "device" .) }}{{ end -}}
{{ toJson ($runner.capabilities | default $names) }}
{{- end -}}

{{/* What the runners convert with, as JSON: root, experiment. */}}
{{- define "edgeloop.toolchains" -}}
{{- $runner := include "edgeloop.runner" . | fromJson -}}
{{- $names := $runner.toolchains -}}
{{- if and $runner.snpeClaim (not (has "snpe" $names)) }}{{ $names = append $names "snpe" }}{{ end -}}
{{- $chosen := get .root.Values.settings "toolchain" -}}
{{- $before := "" -}}
{{- range $word := $runner.args -}}
{{- if eq $before "--toolchain" }}{{ $chosen = $word }}{{ end -}}
{{- if hasPrefix "--toolchain=" $word }}{{ $chosen = trimPrefix "--toolchain=" $word }}{{ end -}}
{{- $before = $word -}}
{{- end -}}
{{- if $chosen }}{{ $names = list $chosen }}{{ end -}}
{{- if has "--no-quantize" $runner.args }}{{ $names = list }}{{ end -}}
{{ toJson $names }}
{{- end -}}
