{{- define "rljob.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{/* What finds the operator's pods; never changes between versions. */}}
{{- define "rljob.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "rljob.labels" -}}
{{ include "rljob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "rljob.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "rljob.fullname" .) }}{{ else }}{{ required "serviceAccount.name: is needed when serviceAccount.create is false" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* Takes x-kubernetes-validations out of a schema, in place: servers below 1.25 refuse a CRD that carries them. */}}
{{- define "rljob.stripCEL" -}}
{{- if kindIs "map" . }}
{{- $_ := unset . "x-kubernetes-validations" }}
{{- range . }}{{ include "rljob.stripCEL" . }}{{ end }}
{{- else if kindIs "slice" . }}
{{- range . }}{{ include "rljob.stripCEL" . }}{{ end }}
{{- end }}
{{- end }}
