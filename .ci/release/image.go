package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// nobody is the user that the image runs as, and whom /data belongs to.
const nobody = 65534

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
	put := func(media string, data []byte) object {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		files = append(files, file{name: "blobs/sha256/" + sum, mode: 0o644, data: data})
		return object{"mediaType": media, "digest": "sha256:" + sum, "size": len(data)}
	}
	putJSON := func(media string, x object) object {
		data, err := json.Marshal(x)
		if err != nil {
			panic(err) // such objects can all be encoded
		}
		return put(media, data)
	}
	var manifests []object
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
		config := object{
			"created": r.time, "architecture": p.arch, "os": p.os,
			"config": object{
				"User":         fmt.Sprintf("%d:%[1]d", nobody),
				"ExposedPorts": object{"2181/tcp": object{}, "2888/tcp": object{}},
				"Env":          []string{"PATH=/bin", "LOCKKEEPER_ZOO_ENV=true"},
				"Entrypoint":   []string{"/bin/lockkeeper"},
				"Cmd":          []string{"serve"},
				"Volumes":      object{"/data": object{}},
				"WorkingDir":   "/data",
				"Labels":       labels,
				"StopSignal":   "SIGTERM",
			},
			"rootfs":  object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
			"history": []object{{"created": r.time, "created_by": "lockkeeper's release program"}},
		}
		m := putJSON(mediaManifest, object{
			"schemaVersion": 2, "mediaType": mediaManifest, "config": putJSON(mediaConfig, config), "layers": []object{put(mediaLayer, gz(layer))}, "annotations": labels,
		})
		m["platform"] = object{"architecture": p.arch, "os": p.os}
		manifests = append(manifests, m)
	}
	top := putJSON(mediaIndex, object{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": manifests, "annotations": labels})
	name := "localhost/lockkeeper:" + r.version // under which podman and containerd load it
	top["annotations"] = object{"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
	index, err := json.Marshal(object{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": []object{top}})
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
