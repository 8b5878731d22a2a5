package lockkeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/core/report"
	"github.com/lockkeeper/lockkeeper/internal/core/request"
)

// askClients is a report.AskClients.
func (s *Server) askClients(ctx context.Context, id uint64, find []string) (report.ClientList, error) {
	var list report.ClientList
	addr, err := s.peerPort(id)
	if err != nil {
		return list, err
	}
	st, told, err := request.AskStatus(ctx, s.network, addr, &request.ClientQuery{Find: find})
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return list, err
	}
	self := s.member.Standing()
	switch {
	case st.ID != id:
		return list, fmt.Errorf("%s is not the address of member %d", addr, id)
	case st.Cluster == 0:
		return list, errors.New("in no cluster yet")
	case st.Cluster != self.Cluster:
		return list, fmt.Errorf("belongs to cluster %v", st.Cluster)
	case told == nil:
		return list, errors.New("it does not tell its clients")
	}
	return *told, nil
}
