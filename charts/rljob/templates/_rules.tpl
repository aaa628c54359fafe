{{/* What the operator needs wherever there are jobs: JOB_RULES of rljob_operator/rbac.py, which says why. A test compares them. */}}
{{- define "rljob.jobRules" -}}
- apiGroups: [rljob.dev]
  resources: [rljobs]
  verbs: [get, list, watch, delete]
- apiGroups: [rljob.dev]
  resources: [rljobs/status]
  verbs: [get, patch]
- apiGroups: [rljob.dev]
  resources: [rljobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles]
  verbs: [get, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [rolebindings]
  verbs: [get, create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, create, update, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, create]
{{- end }}

{{/* KUEUE_RULES: only with kueue.enabled. */}}
{{- define "rljob.kueueRules" -}}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [get, patch]
{{- end }}

{{/* QUOTA_RULES: flavors and classes have no namespace, so with watchNamespaces too these are in a ClusterRole. */}}
{{- define "rljob.quotaRules" -}}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}

{{/* GANG_RULES: PodGroups of the schedulers that the value gangScheduling names. */}}
{{- define "rljob.gangRules" -}}
{{- $groups := dict "Native" "scheduling.k8s.io" "Coscheduling" "scheduling.x-k8s.io" "Volcano" "scheduling.volcano.sh" "KAI" "scheduling.run.ai" }}
{{- range .Values.gangScheduling }}
- apiGroups: [{{ get $groups . }}]
  resources: [podgroups]
  verbs: [get, create, patch]
{{- end }}
{{- end }}

{{/* NODE_RULES: nodes have no namespace, so these are in the ClusterRole alone. */}}
{{- define "rljob.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
{{- end }}

{{/* LEADER_RULES: the Lease by which the operators of a release elect their leader. */}}
{{- define "rljob.leaderRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
{{- end }}
