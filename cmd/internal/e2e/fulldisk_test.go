package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withMounts runs fn where file systems can be mounted: here, when this process may, else
// in a process that has a user and a mount namespace of its own.
func withMounts(t *testing.T, fn func()) {
	t.Helper()
	const inside = "KVCLUSTER_TEST_MOUNTS"
	probe := t.TempDir()
	err := unix.Mount("tmpfs", probe, "tmpfs", 0, "size=64k")
	if err == nil {
		if err := unix.Unmount(probe, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		fn()
		return
	}
	const refused = "mounts are refused: "
	if os.Getenv(inside) != "" {
		t.Fatalf("%s%v", refused, err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Fatalf("it did not run in a namespace of its own:\n%s", out)
	case err != nil && (cmd.ProcessState == nil || bytes.Contains(out, []byte(refused))):
		// What a node does then is tested in cluster/disk too, with a system that only says
		// that it is full.
		t.Logf("nothing was tested: this machine allows neither mounts (not root) nor user namespaces with mounts: %v", err)
	case err != nil:
		t.Fatalf("in a namespace of its own: %v\n%s", err, out)
	}
}

// tinyDisk is a file system whose size changes at will.
type tinyDisk struct {
	t   *testing.T
	dir string
}

func newTinyDisk(t *testing.T, dir, size string) *tinyDisk {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return &tinyDisk{t, dir}
}

// leave makes the disk so large that so many bytes are free.
func (d *tinyDisk) leave(free int64) {
	d.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		d.t.Fatal(err)
	}
	used := int64(st.Blocks-st.Bfree) * st.Bsize
	d.remount(0, fmt.Sprintf("size=%d", used+free))
}

func (d *tinyDisk) remount(flags uintptr, options string) {
	d.t.Helper()
	if err := unix.Mount("", d.dir, "", unix.MS_REMOUNT|flags, options); err != nil {
		d.t.Fatal(err)
	}
}

// diskOf is what a node says of its disk.
func diskOf(t *testing.T, url string) (low bool, leader string) {
	t.Helper()
	var s struct {
		Cluster struct {
			Leader string
			Disk   struct {
				Free uint64 `json:"free_bytes"`
				Low  bool
			}
		}
	}
	if status, body := call(t, "GET", url+"/status", nil, &s); status != 200 {
		t.Fatalf("/status: HTTP %d %s", status, body)
	}
	return s.Cluster.Disk.Low, s.Cluster.Leader
}

// The disk of the leader fills up while it works: it gives the lead away, and says so
// everywhere; when nothing can be written any more, the others decide without it and
// answer completely; when there is room again, it goes on by itself.
func TestClusterFullDisk(t *testing.T) {
	withMounts(t, func() {
		c := &processes{tb: t, dir: t.TempDir(), nodes: map[string]*nodeProcess{}}
		bin, err := buildOnce()
		if err != nil {
			t.Fatal(err)
		}
		c.bin = bin
		disk := newTinyDisk(t, filepath.Join(c.dir, "n1"), "800m")
		t.Cleanup(c.stop)
		c.start("n1")
		c.start("n2")
		c.start("n3")
		c.awaitBalanced(3)
		x := startTraffic(t, c, requests(60), 60)
		x.settle()
		n1, n2 := c.nodes["n1"], c.nodes["n2"]
		if low, leader := diskOf(t, n1.url); low || leader != "n1" {
			t.Fatalf("at the beginning: low %v, leader %s", low, leader)
		}

		disk.leave(100 << 20)
		await(t, 20*time.Second, func() string {
			low, leader := diskOf(t, n1.url)
			if !low || leader == "n1" || leader == "" {
				return fmt.Sprintf("little space: low %v, leader %q", low, leader)
			}
			return ""
		})
		if _, body := call(t, "GET", n1.url+"/metrics", nil, nil); !strings.Contains(body, "kvcluster_disk_low 1") {
			t.Error("/metrics does not say that the disk is low")
		}
		if raw, _ := os.ReadFile(n1.log); !bytes.Contains(raw, []byte("little space is left on the disk")) {
			t.Error("the log does not say that the disk is low")
		}
		if code, said := c.runs("status", "--server", n1.url); code != 0 || !strings.Contains(said, "DISK NEARLY FULL") {
			t.Errorf("status: exit code %d, %s", code, said)
		}
		x.answersAll("little space")

		disk.leave(0)
		for i := range 20 { // more than n1's log has room for
			id := fmt.Sprintf("late-%d", i)
			if code, said := c.runs("register", id, "tcp://"+closedPort(t), "--model", "late"+strings.Repeat("x", 200), "--block-size", "16", "--server", n2.url); code != 0 {
				t.Fatalf("register %s with the disk of one node full: exit code %d, %s", id, code, said)
			}
		}
		c.refused("a snapshot on a full disk", 1, []string{"no space"}, "snapshot", "--server", n1.url)
		select {
		case err := <-n1.ended:
			t.Fatalf("n1 ended: %v\n%s", err, lastLines(n1.log, 20))
		default:
		}
		for name, p := range c.nodes {
			if name == "n1" {
				continue // it may be behind, and says so
			}
			for i := range 12 {
				await(t, 30*time.Second, func() string {
					diff, marked := x.compareOne(p.url, i*5)
					if diff != "" && marked == "" {
						t.Fatalf("full disk at n1, %s, request %d: %s", name, i*5, diff)
					}
					return marked
				})
			}
		}
		// One that is started on it says what is wrong.
		c.refused("a node on a full disk", 1, []string{"No space is left", filepath.Join(c.dir, "n1", "other"), "Make room"},
			"join", c.seed, "--name", "other", "--data", filepath.Join(c.dir, "n1", "other"), "--listen", "127.0.0.1:0")

		disk.leave(800 << 20)
		await(t, 30*time.Second, func() string {
			if low, _ := diskOf(t, n1.url); low {
				return "n1 does not see that there is room again"
			}
			return ""
		})
		c.awaitBalanced(3)
		x.answersAll("room again")
		if code, said := c.runs("snapshot", "--server", n1.url); code != 0 {
			t.Errorf("snapshot: exit code %d, %s", code, said)
		}

		// A disk that the system has made read-only.
		c.kill("n1")
		disk.remount(unix.MS_RDONLY, "")
		c.refused("a read-only disk", 1, []string{"read-only", filepath.Join(c.dir, "n1"), "right to write"},
			"serve", "--name", "n1", "--data", filepath.Join(c.dir, "n1"), "--listen", "127.0.0.1:0")
		x.answersAll("read-only disk at n1")
		disk.remount(0, "")
		c.start("n1")
		c.awaitBalanced(3)
		x.answersAll("afterwards")
		for i := range 20 {
			if code, said := c.runs("unregister", fmt.Sprintf("late-%d", i), "--model", "late"+strings.Repeat("x", 200), "--server", c.anyURL()); code != 0 {
				t.Errorf("unregister: exit code %d, %s", code, said)
			}
		}
	})
}
