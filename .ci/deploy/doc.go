// Package deploy has the tests of what deploys lockkeeper to Kubernetes, the Helm chart in deploy/helm and the
// manifests in deploy/kubernetes (docs/kubernetes.md). They need no cluster of Kubernetes:
//
//   - Helm's own packages render and lint the chart.
//   - The code of Kubernetes' API server decodes, completes and validates what is rendered.
//   - Processes run as the kubelet would run them, each in a network namespace and a root directory of its own
//     (pods_test.go).
//
// It is a module of its own, because Helm and Kubernetes need hundreds of packages.
package deploy
