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

{{/* What one cluster offers: read by `forebay cluster apply`, by the submitter and by the controller. */}}
{{- define "fb.catalogue" -}}
{{- dict
  "image" (include "fb.image" .)
  "imagePullSecrets" .Values.image.pullSecrets
  "ray" .Values.ray
  "head" .Values.head
  "skus" .Values.skus
  "shared" (ternary .Values.cluster.name "" .Values.cluster.enabled)
  "autoscaler" .Values.autoscaler
  "drain" .Values.drain
  "cache" .Values.cache
  "storage" .Values.storage
  "hdfs" .Values.hdfs
  "queue" (ternary "forebay" "" (ne .Values.kueue.clusterQueue ""))
  | toPrettyJson -}}
{{- end -}}
