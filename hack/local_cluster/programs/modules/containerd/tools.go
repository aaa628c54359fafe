//go:build tools

// Package build pins what the local cluster is built from: go.mod and go.sum are the whole recipe.
package build

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
