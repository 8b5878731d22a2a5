{{- define "lockkeeper.name" -}}
{{- $name := .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "%q cannot be the name of a service, which has lower-case letters, digits and hyphens, and begins with a letter: set fullnameOverride" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- define "lockkeeper.selector" -}}
app.kubernetes.io/name: lockkeeper
app.kubernetes.io/instance: {{ include "lockkeeper.name" . | quote }}
app.kubernetes.io/component: member
{{- end }}

{{- define "lockkeeper.labels" -}}
app.kubernetes.io/name: lockkeeper
app.kubernetes.io/instance: {{ include "lockkeeper.name" . | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "lockkeeper.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What follows the name of a pod in its address. Kubernetes inserts the namespace. */ -}}
{{- define "lockkeeper.domain" -}}
{{ include "lockkeeper.name" . }}-peers.$(NAMESPACE).svc
{{- end }}

{{- /* The members of a new cluster: always the first three, so that scaling changes no pod that runs. */ -}}
{{- define "lockkeeper.peers" -}}
{{- $peers := list }}
{{- range $id := untilStep 1 (ternary 2 4 (eq (int .Values.replicas) 1)) 1 }}
{{- $peers = append $peers (printf "%d=%s-%[1]d.%[3]s:2888" $id (include "lockkeeper.name" $) (include "lockkeeper.domain" $)) }}
{{- end }}
{{- join "," $peers }}
{{- end }}

{{- define "lockkeeper.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
