package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// nobody is the user that the image runs as, and whom /data belongs to.
const nobody = 65534

// The parts of OCI's image format that are used here.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Platform    *ociPlatform      `json:"platform,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	ociPlatform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	ociIndex struct {
		Schema      int               `json:"schemaVersion"`
		MediaType   string            `json:"mediaType"`
		Manifests   []descriptor      `json:"manifests"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	ociManifest struct {
		Schema      int               `json:"schemaVersion"`
		MediaType   string            `json:"mediaType"`
		Config      descriptor        `json:"config"`
		Layers      []descriptor      `json:"layers"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	ociImage struct {
		Created time.Time `json:"created"`
		ociPlatform
		Config ociConfig `json:"config"`
		RootFS struct {
			Type  string   `json:"type"`
			Diffs []string `json:"diff_ids"`
		} `json:"rootfs"`
		History []ociHistory `json:"history"`
	}
	ociConfig struct {
		User         string
		ExposedPorts map[string]struct{}
		Env          []string
		Entrypoint   []string
		Cmd          []string
		Volumes      map[string]struct{}
		WorkingDir   string
		Labels       map[string]string
		StopSignal   string
	}
	ociHistory struct {
		Created   time.Time `json:"created"`
		CreatedBy string    `json:"created_by"`
	}
)

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// image writes a tar of an OCI image layout with an image for each program.
func (r *release) image(programs []*program) error {
	labels := map[string]string{
		"org.opencontainers.image.title":    "lockkeeper",
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.revision": r.commit,
		"org.opencontainers.image.created":  r.time.Format(time.RFC3339),
		"org.opencontainers.image.source":   homepage,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	files := []file{{name: "oci-layout", mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	put := func(media string, data []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		files = append(files, file{name: "blobs/sha256/" + sum, mode: 0o644, data: data})
		return descriptor{MediaType: media, Digest: "sha256:" + sum, Size: len(data)}
	}
	putJSON := func(media string, x any) descriptor {
		data, err := json.Marshal(x)
		if err != nil {
			panic(err) // the types above can all be encoded
		}
		return put(media, data)
	}
	all := ociIndex{Schema: 2, MediaType: mediaIndex, Annotations: labels}
	for _, p := range programs {
		layer, err := tarOf([]file{
			{name: "bin/", mode: 0o755},
			{name: "bin/lockkeeper", mode: 0o755, data: p.binary},
			{name: "conf/", mode: 0o755},
			{name: "data/", mode: 0o700, uid: nobody},
			{name: "etc/", mode: 0o755},
			{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnobody:x:65534:\n")},
			{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/:/none\nnobody:x:65534:65534:nobody:/data:/none\n")},
			{name: "licenses/", mode: 0o755},
			{name: "licenses/LICENSE", mode: 0o644, data: r.common[0].data},
			{name: "licenses/THIRD_PARTY_LICENSES", mode: 0o644, data: p.licences},
		}, r.time)
		if err != nil {
			return err
		}
		platform := ociPlatform{p.arch, p.os}
		config := ociImage{
			Created: r.time, ociPlatform: platform,
			Config: ociConfig{
				User:         fmt.Sprintf("%d:%[1]d", nobody),
				ExposedPorts: map[string]struct{}{"2181/tcp": {}, "2888/tcp": {}},
				Env:          []string{"PATH=/bin", "LOCKKEEPER_ZOO_ENV=true"},
				Entrypoint:   []string{"/bin/lockkeeper"},
				Cmd:          []string{"serve"},
				Volumes:      map[string]struct{}{"/data": {}},
				WorkingDir:   "/data",
				Labels:       labels,
				StopSignal:   "SIGTERM",
			},
			History: []ociHistory{{r.time, "lockkeeper's release program"}},
		}
		config.RootFS.Type, config.RootFS.Diffs = "layers", []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}
		m := putJSON(mediaManifest, ociManifest{
			Schema: 2, MediaType: mediaManifest, Config: putJSON(mediaConfig, config), Layers: []descriptor{put(mediaLayer, gz(layer))}, Annotations: labels,
		})
		m.Platform = &platform
		all.Manifests = append(all.Manifests, m)
	}
	top := putJSON(mediaIndex, all)
	name := "localhost/lockkeeper:" + r.version // under which podman and containerd load it
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
	index, err := json.Marshal(ociIndex{Schema: 2, MediaType: mediaIndex, Manifests: []descriptor{top}})
	if err != nil {
		return err
	}
	files = append(files, file{name: "index.json", mode: 0o644, data: index})
	data, err := tarOf(files, r.time)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("lockkeeper_%s_oci.tar", r.version), data, programs...)
}
