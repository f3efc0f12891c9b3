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

{{/* Pod Security "restricted". */}}
{{- define "fb.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fb.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
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
  "cpu" $sku.cpu
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
  "head_cpu" .Values.head.cpu
  "head_memory" .Values.head.memory
  "head_node_selector" .Values.head.nodeSelector
  "head_tolerations" .Values.head.tolerations
  "drain" .Values.drain.onDemand
  "spot_drain" .Values.drain.spot
  "cache" $cache
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
