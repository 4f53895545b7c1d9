package disk

import (
	"errors"
	"os"
	"path/filepath"
)

// replaceFile writes a file as a whole or not at all, also across a power cut: the new
// content is on disk under another name before it takes the old one's place, and so is
// the folder's entry when this returns.
func replaceFile(path string, content []byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(tmp, content); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return syncDir(filepath.Dir(path))
}

func writeSynced(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
