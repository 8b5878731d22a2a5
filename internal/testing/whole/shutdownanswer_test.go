package whole

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

// TestShutdownIsDurable: the leader of three is shut down while clients write through it and through
// a follower. Whatever was answered is there afterwards, also if the leader is cut off meanwhile.
func TestShutdownIsDurable(t *testing.T) {
	n := rounds(4, 20)
	for round := range n {
		inCluster(t, 3, nil, func(t *testing.T, m *members) {
			lead := m.leader()
			s := m.servers[lead]
			c := m.connect(lead, 10*time.Second)
			answered := map[string]bool{}
			ended := make(chan struct{})
			go func() {
				for i := range 1000 {
					if _, err := c.Send(proto.OpCreate, &proto.CreateRequest{Path: fmt.Sprintf("/n%d", i), ACL: proto.OpenACL}); err != nil {
						return
					}
				}
			}()
			go func() {
				defer close(ended)
				for i := 0; ; i++ {
					f, err := c.Read()
					if err != nil || f.Code != proto.OK {
						return
					}
					answered[fmt.Sprintf("/n%d", i)] = true
				}
			}()
			time.Sleep(time.Duration(round) * 5 * time.Millisecond / time.Duration(n))
			if round%4 == 3 {
				time.AfterFunc(time.Duration(round)*2*time.Millisecond/time.Duration(n), func() { m.cutOff(lead, true) })
			}
			m.servers[lead] = nil
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			began := time.Now()
			s.Shutdown(ctx)
			if took := time.Since(began); took > 3100*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			<-ended
			m.cutOff(lead, false)
			other := m.connect((lead+1)%3, 10*time.Second)
			for path := range answered {
				if _, err := other.Call(proto.OpExists, &proto.PathWatch{Path: path}, nil); err != nil {
					t.Fatalf("%s was answered, and is lost: %v", path, err)
				}
			}
			t.Logf("round %d: %d answered, Shutdown took %v", round, len(answered), time.Since(began))
		})
	}
}
