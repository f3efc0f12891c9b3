{{- define "fb.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "fb.labels" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Settings of one kind of the chart's pods: `pods.all`, and its own. */}}
{{- define "fb.settings" -}}
{{- toJson (mergeOverwrite (deepCopy .root.Values.pods.all) (deepCopy (index .root.Values.pods .pod | default dict))) -}}
{{- end -}}

{{/* A pod at Pod Security "restricted", where its settings place it. */}}
{{- define "fb.pod" -}}
{{- $settings := include "fb.settings" . | fromJson -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile:
    type: RuntimeDefault
{{- include "fb.pullSecrets" .root }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $settings $name }}
{{ $name }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fb.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Annotations of a pod: its settings, and checksums of what it reads once. */}}
{{- define "fb.podAnnotations" -}}
{{- $settings := include "fb.settings" . | fromJson -}}
{{- with merge (dict) (.checksums | default dict) ($settings.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image of a container, and its variables beside `env`, a text of list items. None asks for a GPU, so none sees one. */}}
{{- define "fb.container" -}}
{{- $settings := include "fb.settings" . | fromJson -}}
image: {{ include "fb.image" .root }}
{{- with $settings.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
env:
{{- if not (or (hasKey ($settings.env | default dict) "NVIDIA_VISIBLE_DEVICES") (hasKey ($settings.secretEnv | default dict) "NVIDIA_VISIBLE_DEVICES")) }}
  - {name: NVIDIA_VISIBLE_DEVICES, value: void}
{{- end }}
{{- with .env }}
{{ . }}
{{- end }}
{{- range $name, $value := $settings.env }}
  - {name: {{ $name | quote }}, value: {{ $value | quote }}}
{{- end }}
{{- include "fb.secretEnv" $settings.secretEnv }}
{{- end -}}

{{/* Port and probes of agent and controller. A thread that hangs restarts them, a round that fails makes them not ready. */}}
{{- define "fb.probes" -}}
ports:
  - {name: status, containerPort: 8081}
startupProbe:
  httpGet: {path: /livez, port: status}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: status}
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: status}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{- define "fb.secretEnv" -}}
{{- range $name, $where := . }}
  - name: {{ $name | quote }}
    valueFrom:
      secretKeyRef: {name: {{ splitList "/" $where | first | quote }}, key: {{ splitList "/" $where | last | quote }}}
{{- end }}
{{- end -}}

{{/* The first of `versions` of an optional kind that the cluster serves. Without a cluster, such as in `helm template`, what
     is served is known by --api-versions alone: the newest then. Only a cluster lists kinds beside the groups. */}}
{{- define "fb.served" -}}
{{- $apis := .root.Capabilities.APIVersions -}}
{{- $isCluster := $apis.Has "v1/Pod" -}}
{{- $found := "" -}}
{{- range .versions -}}
{{- if and (not $found) (or ($apis.Has (printf "%s/%s" . $.kind)) (and (not $isCluster) ($apis.Has .))) }}{{ $found = . }}{{ end -}}
{{- end -}}
{{- if and $isCluster (not $found) -}}
{{- fail (printf "%s is set, and this cluster has no %s (%s). Install %s first, or leave %s out." .value .kind (join ", " .versions) .needs .value) -}}
{{- end -}}
{{- $found | default (first .versions) -}}
{{- end -}}

{{/* Names are fixed, because jobs and accounts of other clusters use them: one release a namespace. */}}
{{- define "fb.refuseSecondRelease" -}}
{{- $other := dig "metadata" "annotations" "meta.helm.sh/release-name" "" (lookup "v1" "ConfigMap" .Release.Namespace "forebay-catalogue") -}}
{{- if and $other (ne $other .Release.Name) -}}
{{- fail (printf "namespace %s has the release %s of this chart: its objects have fixed names. Upgrade that one, or choose another namespace." .Release.Namespace $other) -}}
{{- end -}}
{{- end -}}

{{/* Annotations of an account. */}}
{{- define "fb.accountAnnotations" -}}
{{- $own := index .root.Values.accounts .account | default dict -}}
{{- with mergeOverwrite (deepCopy .root.Values.accounts.annotations) ($own.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "fb.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* SKUs by name. The chart's own one beside others would take jobs without GPUs to any node. */}}
{{- define "fb.skus" -}}
{{- $own := dict "cpu" "4" "memory" "16Gi" "gpus" 0 "max" 4 -}}
{{- $found := dict -}}
{{- range $name, $sku := .Values.skus -}}
{{- if kindIs "map" $sku -}}
{{- $_ := set $found $name (ternary (merge (deepCopy $sku) $own) $sku (eq $name "cpu")) -}}
{{- end -}}
{{- end -}}
{{- toJson ($found | default (dict "cpu" $own)) -}}
{{- end -}}

{{/* Nodes of all SKUs and markets: taints that their workers tolerate, and terms of a node affinity. No terms: a SKU without
     labels may have any node. */}}
{{- define "fb.machines" -}}
{{- $tolerations := list -}}
{{- $terms := list -}}
{{- $isAny := false -}}
{{- range $name, $sku := include "fb.skus" . | fromJson -}}
{{- $markets := $sku.markets | default dict -}}
{{- range $market, $default := dict "onDemand" true "spot" false -}}
{{- $own := index $markets $market -}}
{{- $isUsed := ternary (ne (toString (default dict $own).enabled) "false") $default (kindIs "map" $own) -}}
{{- if $isUsed -}}
{{- $own = $own | default dict -}}
{{- $tolerations = concat $tolerations ($sku.tolerations | default list) ($own.tolerations | default list) -}}
{{- $expressions := list -}}
{{- range $key, $value := merge (dict) ($own.nodeSelector | default dict) ($sku.nodeSelector | default dict) -}}
{{- $expressions = append $expressions (dict "key" $key "operator" "In" "values" (list $value)) -}}
{{- end -}}
{{- if $expressions }}{{ $terms = append $terms (dict "matchExpressions" $expressions) }}{{ else }}{{ $isAny = true }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "tolerations" (uniq $tolerations) "terms" (ternary list (uniq $terms) $isAny)) -}}
{{- end -}}
