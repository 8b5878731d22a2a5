package server

import (
	"github.com/lockkeeper/lockkeeper/fsm"
	"github.com/lockkeeper/lockkeeper/internal/core/persona"
)

// olderReads returns how reads differ for a persona.
func olderReads(p *persona.Persona) fsm.Older {
	if p == nil {
		return fsm.Older{}
	}
	return fsm.Older{
		FreeExists:     !p.Does(persona.ExistsNeedsRead),
		OneMode:        !p.Does(persona.WatchesSideBySide),
		ForeignWatches: !p.Does(persona.OwnWatches),
		StandardTypes:  !p.Does(persona.PersistentTypes),
		NoConfig:       !p.Does(persona.ConfigNode),
	}
}
