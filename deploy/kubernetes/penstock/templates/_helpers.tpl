{{- /* Names of objects begin with the release's. */ -}}
{{- define "penstock.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "penstock.selector" -}}
{{ dict "app.kubernetes.io/name" "penstock" "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/component" .component | toJson }}
{{- end }}

{{- define "penstock.metadata" -}}
name: {{ .name }}
labels:
  {{- include "penstock.selector" . | fromJson | toYaml | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "penstock.disruptionBudget" -}}
{{- if .root.Values.podDisruptionBudget -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "penstock.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector: {matchLabels: {{ include "penstock.selector" . }}}
{{- end }}
{{- end }}

{{- /* Needs `root`, `component`, `pod` (the values of this pod) and `graceSeconds`. */ -}}
{{- define "penstock.podSpec" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .graceSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .pod.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
topologySpreadConstraints:
  {{- $selector := include "penstock.selector" . }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {{ $selector }}}
  {{- end }}
volumes:
  - {name: tmp, emptyDir: {}}
  - {name: home, emptyDir: {}}
  - {name: state, emptyDir: {}}
  {{- if include "penstock.policyMap" .root }}
  - name: policies
    configMap: {name: {{ include "penstock.policyMap" .root }}}
  {{- end }}
  {{- with .pod.weights }}
  - name: weights
    persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: true}
  {{- end }}
{{- end }}

{{- /* The root file system is read-only; what the image writes is below these three folders. */ -}}
{{- define "penstock.container" -}}
image: {{ .pod.image | default (printf "%s:%s" .root.Values.image.repository (.root.Values.image.tag | default .root.Chart.AppVersion)) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- $resources := deepCopy (.pod.resources | default dict) }}
{{- with .pod.accelerator }}
{{- $_ := set $resources "limits" (merge (dict .resource .count) ($resources.limits | default dict)) }}
{{- end }}
resources: {{ toJson $resources }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: home, mountPath: /home/penstock}
  - {name: state, mountPath: /var/lib/penstock}
  {{- if include "penstock.policyMap" .root }}
  - {name: policies, mountPath: /etc/penstock/policies, readOnly: true}
  {{- end }}
  {{- with .pod.weights }}
  - {name: weights, mountPath: {{ .path }}, readOnly: true}
  {{- end }}
{{- end }}

{{- define "penstock.policyMap" -}}
{{- .Values.policies.configMap | default (ternary (printf "%s-policies" (include "penstock.name" .)) "" (not (empty .Values.policies.files))) -}}
{{- end }}

{{- define "penstock.secretVariable" -}}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .secret.name }}, key: {{ .secret.key }}}}
{{- end }}

{{- /* The section `engine` of a model, from whichever file has it; refuses one that leads elsewhere. */ -}}
{{- define "penstock.engineSection" -}}
{{- $section := dict }}
{{- if not (include "penstock.policyMap" .root) }}
  {{- fail (printf "engines.%s: give policies.files, or policies.configMap" .key) }}
{{- end }}
{{- range $file, $text := .root.Values.policies.files }}
  {{- $document := fromYaml $text }}
  {{- if $document.Error }}{{ fail (printf "policies.files.%s: %s" $file $document.Error) }}{{ end }}
  {{- $section = dig "models" $.engine.model "engine" $section $document }}
{{- end }}
{{- if .root.Values.policies.files }}
  {{- $want := printf "%s:7600" .service }}
  {{- if not (regexMatch (printf "^(tls://)?%s(\\.[a-z0-9.-]+)?:7600$" (regexQuoteMeta .service)) (toString $section.dns)) }}
    {{- fail (printf "engines.%s: the policies must have models.%s.engine.dns: %q" .key .engine.model $want) }}
  {{- end }}
{{- end }}
{{- $product := 1 }}
{{- range $name, $size := $section.parallel }}{{ $product = mul $product $size }}{{ end }}
{{- if and $section (gt .ranks 1) (ne $product (int64 .ranks)) }}
  {{- fail (printf "engines.%s: ranks is %d, and models.%s.engine.parallel has %d" .key .ranks .engine.model $product) }}
{{- end }}
{{- toJson $section }}
{{- end }}
