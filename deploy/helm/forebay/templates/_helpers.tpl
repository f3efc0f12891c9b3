{{- define "fb.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "fb.labels" -}}
app.kubernetes.io/name: forebay
app.kubernetes.io/instance: {{ .Release.Name }}
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
  - name: {{ . }}
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

{{/* Image of a container, and its variables beside `env`, a text of list items. */}}
{{- define "fb.container" -}}
{{- $settings := include "fb.settings" . | fromJson -}}
image: {{ include "fb.image" .root }}
{{- with $settings.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- if or .env $settings.env $settings.secretEnv }}
env:
{{- with .env }}
{{ . }}
{{- end }}
{{- range $name, $value := $settings.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- include "fb.secretEnv" $settings.secretEnv }}
{{- end }}
{{- end -}}

{{- define "fb.secretEnv" -}}
{{- range $name, $where := . }}
  - name: {{ $name }}
    valueFrom:
      secretKeyRef: {name: {{ splitList "/" $where | first }}, key: {{ splitList "/" $where | last }}}
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

{{/* Nodes of all SKUs and markets: taints that their workers tolerate, and terms of a node affinity. No terms: a SKU without
     labels may have any node. */}}
{{- define "fb.machines" -}}
{{- $tolerations := list -}}
{{- $terms := list -}}
{{- $isAny := false -}}
{{- range $name, $sku := .Values.skus -}}
{{- $markets := $sku.markets | default dict -}}
{{- range $market, $default := dict "onDemand" true "spot" false -}}
{{- $own := index $markets $market | default (dict "enabled" $default) -}}
{{- if $own.enabled -}}
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

{{/* What this cluster offers, as `forebay.fleet` reads it. */}}
{{- define "fb.catalogue" -}}
{{- $skus := dict -}}
{{- range $name, $sku := .Values.skus -}}
{{- $markets := list -}}
{{- $own := $sku.markets | default dict -}}
{{- $onDemand := $own.onDemand | default (dict "enabled" true) -}}
{{- $spot := $own.spot | default (dict "enabled" false) -}}
{{- if $spot.enabled }}{{ $markets = append $markets "spot" }}{{ end -}}
{{- if $onDemand.enabled }}{{ $markets = append $markets "on-demand" }}{{ end -}}
{{- $shape := dict
  "cpu" (toString $sku.cpu)
  "memory" $sku.memory
  "gpus" ($sku.gpus | default 0)
  "most_nodes" $sku.max
  "markets" $markets
  "node_selector" (merge (dict) ($onDemand.nodeSelector | default dict) ($sku.nodeSelector | default dict))
  "tolerations" (concat ($sku.tolerations | default list) ($onDemand.tolerations | default list) | default list)
  "spot_node_selector" ($spot.nodeSelector | default dict)
  "spot_tolerations" ($spot.tolerations | default list) -}}
{{- with $sku.pricePerHour }}{{ $_ := set $shape "price_per_hour" . }}{{ end -}}
{{- with $sku.spotPricePerHour }}{{ $_ := set $shape "spot_price_per_hour" . }}{{ end -}}
{{- $_ := set $skus $name $shape -}}
{{- end -}}
{{- $cache := dict "mode" .Values.cache.mode "path" .Values.cache.path "size" .Values.cache.sizeLimit -}}
{{- if eq .Values.cache.mode "claim" -}}
{{- $_ := set $cache "storage_class" (required "cache.mode=claim needs cache.storageClass: the class of local volumes." .Values.cache.storageClass) -}}
{{- end -}}
{{- $cluster := dict
  "name" .Values.clusterName
  "namespace" .Release.Namespace
  "image" (include "fb.image" .)
  "ray_version" .Values.ray.version
  "pull_secrets" .Values.image.pullSecrets
  "service_account" "forebay-ray"
  "head_cpu" (toString .Values.head.cpu)
  "head_memory" .Values.head.memory
  "head_node_selector" .Values.head.nodeSelector
  "head_tolerations" .Values.head.tolerations
  "drain" .Values.drain.onDemand
  "spot_drain" .Values.drain.spot
  "cache" $cache
  "native_sidecars" (semverCompare ">=1.29-0" .Capabilities.KubeVersion.Version)
  "secret_env" .Values.storage.secretEnv
  "sku" $skus -}}
{{- if .Values.cluster.enabled }}{{ $_ := set $cluster "shared_cluster" .Values.cluster.name }}{{ end -}}
{{- if .Values.hdfs.configMap -}}
{{- $hdfs := dict "config_map" .Values.hdfs.configMap -}}
{{- with .Values.hdfs.keytabSecret }}{{ $_ := set $hdfs "keytab_secret" . }}{{ $_ := set $hdfs "principal" $.Values.hdfs.principal }}{{ $_ := set $hdfs "renew_every" $.Values.hdfs.renewEvery }}{{ end -}}
{{- $_ := set $cluster "hdfs" $hdfs -}}
{{- end -}}
{{- if .Values.kueue.clusterQueue }}{{ $_ := set $cluster "scheduler" "kueue" }}{{ $_ := set $cluster "queues" (list "forebay") }}{{ end -}}
{{- toPrettyJson $cluster -}}
{{- end -}}
