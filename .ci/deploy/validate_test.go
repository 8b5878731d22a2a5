package deploy

import (
	"context"
	"fmt"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"sigs.k8s.io/yaml"
)

// strategies are what the API server does before it creates an object.
var strategies = map[string]rest.RESTCreateStrategy{
	"StatefulSet": statefulset.Strategy, "Service": service.Strategy, "Pod": podregistry.Strategy,
	"NetworkPolicy": networkpolicy.Strategy, "PodDisruptionBudget": poddisruptionbudget.Strategy,
}

var codecs = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)

// validate does what the API server does with an object that is to be created. Objects of the Prometheus operator are
// only decoded.
func validate(doc []byte) (kind string, err error) {
	var of struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(doc, &of); err != nil {
		return "", err
	}
	if of.APIVersion == "monitoring.coreos.com/v1" {
		objects := map[string]any{"ServiceMonitor": new(monitoring.ServiceMonitor), "PrometheusRule": new(monitoring.PrometheusRule)}
		object, ok := objects[of.Kind]
		if !ok {
			return of.Kind, fmt.Errorf("unknown kind %s", of.Kind)
		}
		return of.Kind, yaml.UnmarshalStrict(doc, object)
	}
	object, gvk, err := codecs.UniversalDecoder().Decode(doc, nil, nil) // as the API server reads it, in its own types
	if err != nil {
		return of.Kind, err
	}
	strategy, ok := strategies[of.Kind]
	if !ok {
		return of.Kind, fmt.Errorf("unknown kind %s", of.Kind)
	}
	m, err := meta.Accessor(object)
	if err != nil {
		return of.Kind, err
	}
	rest.FillObjectMetaSystemFields(m)
	if s, ok := object.(*core.Service); ok && s.Spec.ClusterIP != "" {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP} // as the storage of services does
	}
	ctx := request.WithRequestInfo(request.WithNamespace(context.Background(), namespace), &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: gvk.Group, APIVersion: gvk.Version})
	return of.Kind, rest.BeforeCreate(strategy, ctx, object)
}

// validateUpdate does what the API server does with a StatefulSet that is to take the place of another one.
func validateUpdate(was, doc []byte) error {
	ctx := request.WithRequestInfo(request.WithNamespace(context.Background(), namespace), &request.RequestInfo{IsResourceRequest: true, Verb: "update", APIGroup: "apps", APIVersion: "v1"})
	var objects []runtime.Object
	for _, text := range [][]byte{was, doc} {
		object, _, err := codecs.UniversalDecoder().Decode(text, nil, nil)
		if err != nil {
			return err
		}
		m, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		m.SetNamespace(namespace)
		m.SetResourceVersion("1")
		objects = append(objects, object)
	}
	return rest.BeforeUpdate(statefulset.Strategy, ctx, objects[1], objects[0])
}
