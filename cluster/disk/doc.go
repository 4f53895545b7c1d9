package disk

import (
	_ "github.com/hashicorp/memberlist"
	_ "github.com/hashicorp/raft-boltdb/v2"
	_ "go.etcd.io/bbolt"
)
