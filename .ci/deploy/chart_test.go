package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

const (
	root      = "../.."
	chartDir  = root + "/deploy/helm/lockkeeper"
	namespace = "locks"
)

// testPod is the template that only "helm test" uses.
const testPod = "templates/tests/lock.yaml"

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	return must(loader.LoadDir(chartDir))(t)
}

// parse returns values as they are in a file for "helm install --values".
func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	var v map[string]any
	check(t, yaml.UnmarshalStrict([]byte(values), &v))
	return v
}

// render returns what "helm install lockkeeper --namespace locks" makes of each template, without what is empty.
func render(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	return renderAs(t, "lockkeeper", parse(t, values), loadChart(t), engine.Engine{Strict: true})
}

// renderAs is render for a release of another name, or of a chart that has this one as a dependency.
func renderAs(t *testing.T, release string, values map[string]any, c *chart.Chart, e engine.Engine) (map[string]string, error) {
	t.Helper()
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := e.RenderWithContext(t.Context(), c, all)
	if err != nil {
		return nil, err
	}
	rendered := map[string]string{}
	for name, text := range files {
		if strings.TrimSpace(text) != "" {
			name, _ = strings.CutPrefix(name, c.Name()+"/")
			rendered[strings.TrimPrefix(name, "charts/lockkeeper/")] = text
		}
	}
	return rendered, nil
}

func mustRender(t *testing.T, values string) map[string]string {
	t.Helper()
	files, err := render(t, values)
	if err != nil {
		t.Fatalf("%s: %v", values, err)
	}
	return files
}

// variants are values that together use all that the chart has.
var variants = map[string]string{
	"default": "",
	"single":  "replicas: 1",
	"stopped": "replicas: 0",
	"all": `
replicas: 5
image: {repository: registry.example/lockkeeper, tag: v1, pullPolicy: Always, pullSecrets: [registry]}
extraArgs: [--tick-time=1s, '--super-digest=super:xQJmxLMiHGwaqBvst5y6rkB6HQs=']
extraEnv: [{name: LOCKKEEPER_LOG_LEVEL, value: info}, {name: TZ, valueFrom: {configMapKeyRef: {name: zone, key: name}}}]
extraVolumes: [{name: sasl, secret: {secretName: users}}, {name: audit, emptyDir: {}}]
extraVolumeMounts: [{name: sasl, mountPath: /sasl, readOnly: true}, {name: audit, mountPath: /audit}]
storage: {size: 20Gi, className: fast}
adminWrite: [sessions, locks, znodes, snapshots]
tls: {clientSecret: clients, clientAuth: want, peerSecret: peers}
networkPolicy:
  clients: [{namespaceSelector: {matchLabels: {locks: "true"}}}, {ipBlock: {cidr: 10.0.0.0/8}}]
  metrics: [{podSelector: {matchLabels: {app: prometheus}}}]
monitoring: {serviceMonitor: true, prometheusRule: true, labels: {release: prometheus}}
spread: DoNotSchedule
nodeSelector: {disk: ssd}
tolerations: [{key: locks, operator: Exists, effect: NoExecute, tolerationSeconds: 1234567890}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}
priorityClassName: high
podLabels: {team: locks, app.kubernetes.io/component: mine}
podAnnotations: {sidecar.istio.io/inject: "false"}
serviceAccountName: locks
resources: {requests: {cpu: 1, memory: 1073741824}, limits: {memory: 12345678901}}`,
	"without certificates of clients": "tls: {clientSecret: clients, clientAuth: none}\nadminWrite: []\nnetworkPolicy: {enabled: false}",
}

// TestLint: Helm's linter finds nothing, except that there is no icon.
func TestLint(t *testing.T) {
	for name, values := range variants {
		for _, m := range lint.RunAll(chartDir, parse(t, values), namespace).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// checkValid checks that the API server accepts what is rendered, and returns how many objects of each kind there are.
func checkValid(t *testing.T, name string, files map[string]string) map[string]int {
	t.Helper()
	kinds := map[string]int{}
	for file, text := range files {
		for _, doc := range documents(text) {
			if strings.HasSuffix(file, ".txt") {
				continue
			}
			kind, err := validate([]byte(doc))
			if err != nil {
				t.Errorf("%s: %s: %v", name, file, err)
			}
			kinds[kind]++
		}
	}
	return kinds
}

// TestValid: the API server accepts what is rendered.
func TestValid(t *testing.T) {
	for name, values := range variants {
		kinds := checkValid(t, name, mustRender(t, values))
		want := map[string]int{"StatefulSet": 1, "Service": 2, "NetworkPolicy": 1, "PodDisruptionBudget": 1, "Pod": 1}
		switch name {
		case "single":
			delete(want, "PodDisruptionBudget")
		case "all":
			want["ServiceMonitor"], want["PrometheusRule"] = 1, 1
		case "without certificates of clients":
			delete(want, "NetworkPolicy")
		}
		if !maps.Equal(kinds, want) {
			t.Errorf("%s: there are %v", name, kinds)
		}
	}
}

// TestInvalid: what the API server would refuse, validate refuses.
func TestInvalid(t *testing.T) {
	good := mustRender(t, "")["templates/statefulset.yaml"]
	for _, x := range []struct{ old, new, says string }{
		{"replicas: 3", "replica: 3", "unknown field"},
		{"replicas: 3", `replicas: "3"`, "cannot unmarshal"},
		{"- {name: metrics,", "- {name: clients,", "Duplicate value"},
		{"mountPath: /data}", "mountPath: /data, name: other}", "already set"},
		{"name: data, mountPath", "name: other, mountPath", "Not found"},
		{"podManagementPolicy: Parallel", "podManagementPolicy: AtOnce", "must be 'OrderedReady' or 'Parallel'"},
		{`storage: "8Gi"`, "storage: -8Gi", "greater than zero"},
		{"app.kubernetes.io/component: member\n  template", "app.kubernetes.io/component: other\n  template", "selector"},
	} {
		bad := strings.Replace(good, x.old, x.new, 1)
		if _, err := validate([]byte(bad)); bad == good || err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%q: %v", x.new, err)
		}
	}
}

// TestRestricted: all pods, also that of docs/kubernetes.md, keep to the Pod Security Standard "restricted".
func TestRestricted(t *testing.T) {
	evaluator := must(policy.NewEvaluator(policy.DefaultChecks(), nil))(t)
	pods := 0
	all := map[string]map[string]string{"docs/kubernetes.md": {"restore.yaml": restoreManifest(t)}}
	for name, values := range variants {
		all[name] = mustRender(t, values)
	}
	for name, files := range all {
		for file, text := range files {
			for _, doc := range documents(text) {
				object, _, err := codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
				if err != nil {
					continue // no object of Kubernetes
				}
				var template core.PodTemplateSpec
				switch x := object.(type) {
				case *apps.StatefulSet:
					template = x.Spec.Template
				case *core.Pod:
					template = core.PodTemplateSpec{ObjectMeta: x.ObjectMeta, Spec: x.Spec}
				default:
					continue
				}
				pods++
				for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &template.ObjectMeta, &template.Spec) {
					if !r.Allowed {
						t.Errorf("%s: %s: %s: %s", name, file, r.ForbiddenReason, r.ForbiddenDetail)
					}
				}
			}
		}
	}
	if pods != 2*len(variants)+1 {
		t.Errorf("there are %d pods", pods)
	}
}

// TestRefused: the chart refuses values that it does not know, or that make no cluster.
func TestRefused(t *testing.T) {
	for values, says := range map[string]string{
		"replicas: 2":                          "/replicas",
		"replicas: three":                      "/replicas",
		"replicas: 255":                        "/replicas",
		"replica: 3":                           "replica",
		"image: {tags: v1}":                    "tags",
		"extraArgs: [tick-time=1s]":            "/extraArgs",
		"storage: {directory: restored}":       "directory",
		"storage: {size: many}":                "/storage/size",
		"adminWrite: [everything]":             "/adminWrite",
		"tls: {clientAuth: maybe}":             "/tls/clientAuth",
		"networkPolicy: {client: []}":          "client",
		"spread: never":                        "/spread",
		"nodeSelector: {disk: 1}":              "/nodeSelector/disk",
		"monitoring: {serviceMonitor: enable}": "/monitoring/serviceMonitor",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// TestSchema: the schema has the values of the chart, and no others.
func TestSchema(t *testing.T) {
	c := loadChart(t)
	var schema map[string]any
	check(t, json.Unmarshal(c.Schema, &schema))
	var compare func(at string, schema, values map[string]any)
	compare = func(at string, schema, values map[string]any) {
		properties, ok := schema["properties"].(map[string]any)
		if !ok { // it belongs to Kubernetes
			return
		}
		for name, of := range properties {
			if value, ok := values[name]; at == "" && (name == "global" || name == "enabled") {
			} else if !ok {
				t.Errorf("values.yaml has no %s%s", at, name)
			} else if more, ok := value.(map[string]any); ok {
				compare(at+name+".", of.(map[string]any), more)
			}
		}
	}
	compare("", schema, c.Values)
	if _, err := render(t, ""); err != nil { // what the schema does not have, it refuses
		t.Error(err)
	}
}

// TestScalingChangesNoPod: with another number of members, the pods that run keep running.
func TestScalingChangesNoPod(t *testing.T) {
	template := func(replicas int) any {
		var set struct{ Spec struct{ Template any } }
		if err := yaml.Unmarshal([]byte(mustRender(t, fmt.Sprint("replicas: ", replicas))["templates/statefulset.yaml"]), &set); err != nil || set.Spec.Template == nil {
			t.Fatal(err)
		}
		return set.Spec.Template
	}
	for _, replicas := range []int{0, 4, 5, 7} {
		if !reflect.DeepEqual(template(replicas), template(3)) {
			t.Errorf("the pods of %d replicas differ from those of 3", replicas)
		}
	}
	if reflect.DeepEqual(template(1), template(3)) {
		t.Error("a single server has the template of a cluster")
	}
}

// TestVersion: the chart and its image have the version of the program.
func TestVersion(t *testing.T) {
	if m := loadChart(t).Metadata; m.Version != lockkeeper.Version || m.AppVersion != lockkeeper.Version {
		t.Errorf("the chart has version %s, for %s; the program has %s", m.Version, m.AppVersion, lockkeeper.Version)
	}
}

// TestAlerts: the chart's alerts are those of docs/alerts.yml, for the job of the ServiceMonitor.
func TestAlerts(t *testing.T) {
	alerts := must(os.ReadFile(root + "/docs/alerts.yml"))(t)
	testkit.GeneratedFile(t, chartDir+"/files/alerts.yml", string(alerts))
	text := mustRender(t, variants["all"])["templates/monitoring.yaml"]
	if job := `job="locks/lockkeeper"`; strings.Contains(text, `job="lockkeeper"`) || strings.Count(text, job) != strings.Count(string(alerts), `job="lockkeeper"`) || !strings.Contains(text, "replacement: locks/lockkeeper\n") {
		t.Errorf("the job of the alerts is not that of the ServiceMonitor:\n%s", text)
	}
	var monitor monitoring.ServiceMonitor
	check(t, yaml.UnmarshalStrict([]byte(documents(text)[0]), &monitor))
	named := slices.ContainsFunc(monitor.Spec.Endpoints[0].RelabelConfigs, func(r monitoring.RelabelConfig) bool {
		return r.TargetLabel == "instance" && slices.Equal(r.SourceLabels, []monitoring.LabelName{"__meta_kubernetes_pod_name"})
	})
	if strings.Contains(text, "$labels.instance") && !named {
		t.Error("alerts name a pod by its address, which another one may have by then")
	}
}

// TestManifests: the manifests in deploy/kubernetes are what the chart renders. With -rewrite it writes them.
func TestManifests(t *testing.T) {
	for name, of := range map[string]struct{ values, what string }{
		"cluster.yaml": {"", "A cluster of three"},
		"single.yaml":  {"replicas: 1", "A single server"},
	} {
		files := mustRender(t, of.values)
		delete(files, testPod)
		delete(files, "templates/NOTES.txt")
		var b strings.Builder
		fmt.Fprintf(&b, "# %s, for any namespace: kubectl apply --namespace NAMESPACE --filename %s\n# docs/kubernetes.md says more. \"make manifests\" makes this file from deploy/helm/lockkeeper.\n", of.what, name)
		for _, file := range slices.Sorted(maps.Keys(files)) {
			for _, doc := range documents(files[file]) {
				fmt.Fprintf(&b, "---\n%s\n", doc)
			}
		}
		if strings.Contains(b.String(), namespace) {
			t.Errorf("%s is only for one namespace", name)
		}
		testkit.GeneratedFile(t, path.Join(root, "deploy/kubernetes", name), b.String())
	}
}

// documents returns the documents of a YAML file, without empty ones and space around them.
func documents(text string) (docs []string) {
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		if doc = strings.TrimSpace(doc); doc != "" {
			docs = append(docs, doc)
		}
	}
	return docs
}
