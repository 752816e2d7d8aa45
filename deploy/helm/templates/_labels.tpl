{{- define "mld.selector" -}}
app.kubernetes.io/name: mld
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "mld.labels" -}}
{{ include "mld.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: mld-{{ .Chart.Version }}
{{- end }}
