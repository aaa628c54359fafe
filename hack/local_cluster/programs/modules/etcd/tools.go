//go:build tools

// Package build pins what the local cluster is built from: go.mod and go.sum are the whole recipe.
package build

import (
	_ "go.etcd.io/etcd/server/v3"
)
