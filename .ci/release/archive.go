package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"strings"
	"time"
)

// archive writes the archive for people who install by hand: a zip for Windows, else a tar.gz.
func (r *release) archive(p *program) error {
	name := "lockkeeper"
	if p.os == "windows" {
		name += ".exe"
	}
	files := append([]file{{name: name, mode: 0o755, data: p.binary}, {name: "THIRD_PARTY_LICENSES", mode: 0o644, data: p.licences}}, r.common...)
	for i := range files {
		files[i].name = r.base(p) + "/" + files[i].name
	}
	if p.os == "windows" {
		data, err := zipOf(files, r.time)
		return errors.Join(err, r.write(r.base(p)+".zip", data, p))
	}
	data, err := tarGz(files, r.time)
	return errors.Join(err, r.write(r.base(p)+".tar.gz", data, p))
}

// tarOf returns a tar of files in their order. A name that ends with a slash is a directory.
func tarOf(files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: at, Uid: f.uid, Gid: f.uid, Format: tar.FormatUSTAR}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func tarGz(files []file, at time.Time) ([]byte, error) {
	t, err := tarOf(files, at)
	return gz(t), err
}

// gz compresses data. The header has no name and no time.
func gz(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data) // into memory, where nothing fails
	w.Close()
	return b.Bytes()
}

func zipOf(files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(fs.FileMode(f.mode))
		part, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := part.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
