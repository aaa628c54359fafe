//go:build tools

// Package build pins what the local cluster is built from: go.mod and go.sum are the whole recipe.
package build

import (
	_ "sigs.k8s.io/kube-network-policies/cmd"
)
