package lockkeeper

import "github.com/lockkeeper/lockkeeper/internal/core/report"

func init() {
	report.Register(func(s any) report.Server { return s.(*Server).clients })
}
