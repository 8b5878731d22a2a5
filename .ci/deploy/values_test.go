package deploy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestNames: a release may have any name of which Kubernetes can make the names of all objects, also one that YAML
// takes for something other than a text. Others are refused before anything is installed.
func TestNames(t *testing.T) {
	for _, name := range []string{"a", "on", "true", "null", "y", "l0cks-2", strings.Repeat("x", 53), strings.Repeat("x", 49) + "-yz"} {
		files, err := renderAs(t, name, parse(t, variants["all"]), loadChart(t), engine.Engine{Strict: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkValid(t, name, files)
		files, err = renderAs(t, "3.locks", map[string]any{"fullnameOverride": strings.TrimRight(name[:min(50, len(name))], "-")}, loadChart(t), engine.Engine{Strict: true})
		if err != nil {
			t.Errorf("fullnameOverride %s: %v", name, err)
			continue
		}
		checkValid(t, name, files)
	}
	for _, name := range []string{"3", "3locks", "my.locks"} { // of which Helm makes releases
		if _, err := renderAs(t, name, nil, loadChart(t), engine.Engine{}); err == nil || !strings.Contains(err.Error(), "set fullnameOverride") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTexts: a value may look like something other than a text.
func TestTexts(t *testing.T) {
	for _, text := range []string{"1", "1e3", "0x1", "true", "on", "null", "1.5"} {
		values := map[string]any{
			"image":             map[string]any{"repository": text, "tag": text, "pullSecrets": []any{text}},
			"storage":           map[string]any{"className": text},
			"tls":               map[string]any{"clientSecret": text, "peerSecret": text},
			"nodeSelector":      map[string]any{"disk": text},
			"monitoring":        map[string]any{"serviceMonitor": true, "labels": map[string]any{"release": text}},
			"priorityClassName": text,
		}
		files, err := renderAs(t, "lockkeeper", values, loadChart(t), engine.Engine{Strict: true})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		checkValid(t, text, files)
	}
}

// TestDependency: another chart may have this one as a dependency, with a condition, and more than once.
func TestDependency(t *testing.T) {
	app := &chart.Chart{Metadata: &chart.Metadata{
		APIVersion: chart.APIVersionV2, Name: "app", Version: "1.0.0", Type: "application",
		Dependencies: []*chart.Dependency{{Name: "lockkeeper", Version: "*", Condition: "lockkeeper.enabled"}},
	}}
	app.AddDependency(loadChart(t))
	values := parse(t, "global: {imageRegistry: registry.example}\nlockkeeper: {enabled: true, fullnameOverride: app-locks, replicas: 5}")
	files := must(renderAs(t, "app", values, app, engine.Engine{Strict: true}))(t)
	kinds := checkValid(t, "a dependency", files)
	if set := files["templates/statefulset.yaml"]; kinds["StatefulSet"] != 1 || !strings.Contains(set, "name: \"app-locks\"\n") || !strings.Contains(set, "1=app-locks-1.app-locks-peers.$(NAMESPACE).svc:2888") {
		t.Errorf("%v\n%s", kinds, set)
	}
}

// TestNull: a value that is null, which takes the default away, is either refused or means that there is none. In
// particular Kubernetes does not fill in something else: one replica, for instance.
func TestNull(t *testing.T) {
	mayBeNull := []string{
		"fullnameOverride", "image.tag", "image.pullSecrets", "extraArgs", "extraEnv", "extraVolumes", "extraVolumeMounts", "storage.className", "resources", "adminWrite", "tls.clientSecret", "tls.peerSecret",
		"networkPolicy.clients", "networkPolicy.metrics", "monitoring.labels", "nodeSelector", "tolerations", "affinity",
		"priorityClassName", "podLabels", "podAnnotations", "serviceAccountName",
	}
	var each func(at string, values map[string]any)
	each = func(at string, values map[string]any) {
		for name, value := range values {
			path := at + name
			values := any(nil)
			for _, key := range slices.Backward(strings.Split(path, ".")) {
				values = map[string]any{key: values}
			}
			files, err := renderAs(t, "lockkeeper", values.(map[string]any), loadChart(t), engine.Engine{})
			switch may := slices.Contains(mayBeNull, path); {
			case !may && (err == nil || !strings.Contains(err.Error(), "missing propert")):
				t.Errorf("%s is null, and the error %v", path, err)
			case may && err != nil:
				t.Errorf("%s is null: %v", path, err)
			case may:
				checkValid(t, path, files)
			}
			if more, ok := value.(map[string]any); ok && path != "resources" && path != "podSecurityContext" {
				each(path+".", more)
			}
		}
	}
	each("", loadChart(t).Values)
}

// TestSpread: with spread: DoNotSchedule no node gets a second member, however few nodes there are.
func TestSpread(t *testing.T) {
	fits := func(values string, nodes ...int) bool { // whether one of the nodes, with these numbers of members, may get another one
		var set apps.StatefulSet
		check(t, yaml.UnmarshalStrict([]byte(mustRender(t, values)["templates/statefulset.yaml"]), &set))
		for _, c := range set.Spec.Template.Spec.TopologySpreadConstraints {
			if c.TopologyKey != core.LabelHostname || c.WhenUnsatisfiable != core.DoNotSchedule {
				continue
			}
			least := slices.Min(nodes)
			if c.MinDomains != nil && int(*c.MinDomains) > len(nodes) {
				least = 0
			}
			return slices.ContainsFunc(nodes, func(members int) bool { return members+1-least <= int(c.MaxSkew) })
		}
		return true
	}
	for _, x := range []struct {
		nodes []int
		want  bool
	}{{[]int{1, 1, 0}, true}, {[]int{1, 1}, false}, {[]int{1}, false}, {[]int{1, 1, 1, 1}, false}} {
		if got := fits("spread: DoNotSchedule", x.nodes...); got != x.want {
			t.Errorf("one more for %v: %v", x.nodes, got)
		}
		if !fits("", x.nodes...) {
			t.Errorf("by default there is no place for one more than %v", x.nodes)
		}
	}
}

// TestRefusedUpgrade: the chart refuses a number of replicas that would stop the cluster that there is.
func TestRefusedUpgrade(t *testing.T) {
	const all = -1
	tls, ns := "", namespace // of the StatefulSet that there is
	upgradeTo := func(from, ready int, values map[string]any) error {
		t.Helper()
		var was map[string]any
		check(t, yaml.Unmarshal([]byte(mustRender(t, fmt.Sprint("replicas: ", cmp.Or(from, 3), "\ntls: {peerSecret: '", tls, "'}"))["templates/statefulset.yaml"]), &was))
		if ready == all {
			ready = from
		}
		was["spec"].(map[string]any)["replicas"] = int64(from)
		if was["status"] = map[string]any{"replicas": int64(from)}; ready > 0 {
			was["status"].(map[string]any)["readyReplicas"] = int64(ready)
		}
		e := engine.Engine{Strict: true, CustomTemplateFuncs: template.FuncMap{"lookup": func(version, kind, in, name string) (map[string]any, error) {
			if version == "apps/v1" && kind == "StatefulSet" && in == ns && name == "lockkeeper" {
				return was, nil
			}
			return map[string]any{}, nil
		}}}
		_, err := renderAs(t, "lockkeeper", values, loadChart(t), e)
		return err
	}
	upgrade := func(from, ready, to int) error { return upgradeTo(from, ready, map[string]any{"replicas": to}) }
	for _, x := range []struct {
		from, ready, to int
		says            string
	}{
		{3, all, 3, ""}, {3, all, 5, ""}, {3, 1, 5, ""}, {1, all, 1, ""},
		{3, all, 0, ""}, {1, all, 0, ""}, {5, all, 0, ""},
		{5, 3, 3, ""}, // two were removed
		{5, all, 3, "5 members are ready"}, {5, 4, 3, "4 members are ready"},
		{3, all, 1, "lockkeeper is a cluster"}, {3, 0, 1, "lockkeeper is a cluster"}, {1, all, 3, ""},
	} {
		if err := upgrade(x.from, x.ready, x.to); (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%d replicas, of which %d are ready, become %d: %v", x.from, x.ready, x.to, err)
		}
	}
	for _, to := range []int{1, 3} { // a stopped one was restored
		if err := upgrade(0, 0, to); err != nil {
			t.Errorf("a stopped one gets %d replicas: %v", to, err)
		}
	}
	secret := func(name string, replicas int) map[string]any {
		return map[string]any{"replicas": replicas, "tls": map[string]any{"peerSecret": name}}
	}
	for _, x := range []struct {
		was        string
		from       int
		to         map[string]any
		understood bool
	}{
		{"", 3, secret("peers", 3), false}, {"peers", 3, secret("", 3), false}, {"", 1, secret("peers", 3), false},
		{"peers", 3, secret("other", 5), true}, {"", 0, secret("peers", 3), true}, {"", 3, secret("peers", 0), true}, {"", 1, secret("peers", 1), true},
	} {
		tls = x.was
		if err := upgradeTo(x.from, all, x.to); (err == nil) != x.understood || err != nil && !strings.Contains(err.Error(), "do not understand each other") {
			t.Errorf("%d members with peerSecret %q get %v: %v", x.from, x.was, x.to, err)
		}
	}
	tls, ns = "", "elsewhere"
	if err := upgrade(5, all, 1); err != nil {
		t.Errorf("because of another namespace: %v", err)
	}
}

// TestUpgradable: all values but those of volumes can be changed by an upgrade.
func TestUpgradable(t *testing.T) {
	set := func(values string) []byte { return []byte(mustRender(t, values)["templates/statefulset.yaml"]) }
	storage := "storage: {size: 20Gi, className: fast}\n"
	all := strings.Replace(variants["all"], storage, "", 1)
	if all == variants["all"] {
		t.Fatal("the variant has other volumes")
	}
	for _, values := range []string{all, "replicas: 0", "replicas: 1"} {
		if err := validateUpdate(set(""), set(values)); err != nil {
			t.Errorf("%s: %v", values, err)
		}
		if err := validateUpdate(set(values), set("")); err != nil {
			t.Errorf("back from %s: %v", values, err)
		}
	}
	if err := validateUpdate(set(""), set(storage)); err == nil || !strings.Contains(err.Error(), "volumeClaimTemplates") {
		t.Errorf("other volumes, which docs/kubernetes.md says how to get: %v", err)
	}
}
