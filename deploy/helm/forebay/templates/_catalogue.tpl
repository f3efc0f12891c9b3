{{/* What this cluster offers, as `forebay.fleet.catalogue` reads it: the values that describe it, as they are. */}}
{{- define "fb.catalogue" -}}
{{- if eq .Values.cache.mode "claim" -}}
{{- fail "cache.mode=claim is called ephemeralClaim: the claim is deleted with its pod. Write cache.mode=ephemeralClaim." -}}
{{- end -}}
{{- if and (eq .Values.cache.mode "ephemeralClaim") (not .Values.cache.storageClass) -}}
{{- fail "cache.mode=ephemeralClaim needs cache.storageClass: the class of local volumes." -}}
{{- end -}}
{{- $image := pick .Values.image "repository" "digest" "pullSecrets" -}}
{{- if not .Values.image.digest }}{{ $_ := set $image "tag" (.Values.image.tag | default .Chart.AppVersion) }}{{ end -}}
{{- $scheduler := .Values.scheduler -}}
{{- $queues := .Values.queues | default list -}}
{{- if .Values.kueue.clusterQueue -}}
{{- if not (has $scheduler (list "" "kueue")) }}{{ fail (printf "kueue.clusterQueue is set, and scheduler is %s. Write scheduler=kueue." $scheduler) }}{{ end -}}
{{- $scheduler = "kueue" -}}
{{- $queues = uniq (prepend $queues "forebay") -}}
{{- end -}}
{{- toPrettyJson (dict
  "version" 2
  "clusterName" .Values.clusterName
  "namespace" .Release.Namespace
  "image" $image
  "ray" .Values.ray
  "serviceAccount" "forebay-ray"
  "nativeSidecars" (semverCompare ">=1.29-0" .Capabilities.KubeVersion.Version)
  "head" .Values.head
  "skus" (include "fb.skus" . | fromJson)
  "drain" .Values.drain
  "cache" (pick .Values.cache "mode" "path" "sizeLimit" "storageClass")
  "storage" .Values.storage
  "hdfs" .Values.hdfs
  "cluster" .Values.cluster
  "scheduler" $scheduler
  "queues" $queues
  "priorities" .Values.priorities
  "podTemplate" .Values.podTemplate) -}}
{{- end -}}
