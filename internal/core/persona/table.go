package persona

import "github.com/lockkeeper/lockkeeper/proto"

// Trait is a behaviour that older lines do not have.
type Trait int

// The traits. What each is and what older lines do instead is in [Table].
const (
	_ Trait = iota
	CreateModes
	IPMasks
	AuthInPlace
	ConfigNode
	ConfSizes
	DumpConnections
	NullACL
	DecimalLatency
	Backlog
	Learners
	EnforcedQuotas
	ISODates
	MultiModes
	ExistsNeedsRead
	EventZxid
	WatchesSideBySide
	OwnWatches
	PersistentTypes
	FreeUnreadable
	IPv6InACL
)

// Row is something that ZooKeeper has learned since 3.4.
type Row struct {
	Since Line
	From  Line // the first line that lacks it; 0 is the oldest
	// What it is: operations, codes, words, commands of the AdminServer by their first names,
	// lines of the word mntr, or a trait.
	Ops      []proto.OpCode
	Codes    []proto.Code
	Words    []string
	Commands []string
	Monitor  []string
	Trait    Trait

	Says   string // what is so since then
	Before string // what older lines do
}

const (
	unknownOp   = "Unimplemented, then the connection is closed; in a multi, MarshallingError for the whole multi"
	unknownCode = "the connection is closed instead"
	unknownWord = "taken for the length of a frame, and the connection is closed"
)

// Table is all that ZooKeeper's lines have learned and that a persona leaves out.
var Table = []Row{
	{Since: 5, Ops: []proto.OpCode{proto.OpCreate2, proto.OpReconfig, proto.OpCheckWatches, proto.OpRemoveWatches, proto.OpCreateContainer, proto.OpCreateTTL},
		Before: unknownOp},
	{Since: 6, Ops: []proto.OpCode{proto.OpMultiRead, proto.OpGetEphemerals, proto.OpGetAllChildrenNumber, proto.OpSetWatches2, proto.OpAddWatch}, Before: unknownOp},
	{Since: 7, Ops: []proto.OpCode{proto.OpWhoAmI}, Before: unknownOp},

	{Since: 5, Codes: []proto.Code{proto.NewConfigNoQuorum, proto.ReconfigInProgress, proto.UnknownSession, proto.NoWatcher, proto.ReconfigDisabled, proto.SessionClosedRequireSASLAuth},
		Before: unknownCode},
	{Since: 7, Codes: []proto.Code{proto.QuotaExceeded, proto.ThrottledOp}, Before: unknownCode},

	{Since: 5, Trait: CreateModes, Says: "the modes of containers and TTL znodes", Before: "create with such a mode fails with BadArguments"},
	{Since: 5, Trait: IPMasks, Says: "masks in ACL entries of scheme ip", Before: "InvalidACL"},
	{Since: 5, Trait: AuthInPlace, Says: "in an ACL, the identities that replace an entry of scheme auth take its place", Before: "they come last"},
	{Since: 5, Trait: ConfigNode, Says: "/zookeeper/config", Before: "reads of it fail with NoNode, and /zookeeper does not list it"},
	{Since: 6, Trait: NullACL, Says: "a null ACL fails with InvalidACL", Before: "MarshallingError"},
	{Since: 7, Trait: EnforcedQuotas, Says: "quotas are enforced, if enforceQuota says so", Before: "they never are"},
	{Since: 7, Trait: MultiModes, Says: "a multi with an unknown mode or a null ACL fails as a whole, and a create2 in it has a result of type create2",
		Before: "only the create with the unknown mode fails, with BadArguments, and so does one with a null ACL, with InvalidACL (before 3.6 the whole multi with MarshallingError); a create2, and a createContainer without the mode of a container, has a result of type create"},
	{Since: 8, Trait: ExistsNeedsRead, Says: "exists needs READ on a znode that exists", Before: "exists needs no permission"},
	{Since: 9, Trait: EventZxid, Says: "the header of an event has the zxid of the change", Before: "it has -1"},
	{Since: 9, From: 6, Trait: WatchesSideBySide, Says: "watches of several modes on one znode coexist", Before: "a later one replaces the one before, in each of the sets of data and child watches"},
	{Since: 9, From: 6, Trait: OwnWatches, Says: "checkWatches finds only the watches of its own connection", Before: "it finds those of other connections too"},
	{Since: 9, From: 5, Trait: PersistentTypes, Says: "checkWatches and removeWatches know the types of persistent watches", Before: "MarshallingError"},
	{Since: 9, Trait: FreeUnreadable, Says: "a write that cannot be decoded consumes no zxid", Before: "it consumes one"},
	{Since: 9, Trait: IPv6InACL, Says: "IPv6 addresses in ACL entries of scheme ip", Before: "InvalidACL"},

	{Since: 5, Words: []string{"dirs"}, Before: unknownWord},
	{Since: 6, Words: []string{"hash"}, Before: unknownWord},
	{Since: 5, Trait: ConfSizes, Says: "conf shows secureClientPort, dataDirSize and dataLogSize", Before: "it does not; in a cluster it does not show the membership either"},
	{Since: 5, Trait: DumpConnections, Says: "dump lists connections, and its first line counts sessions too", Before: "it does not"},
	{Since: 6, Trait: DecimalLatency, Says: "the mean latency has decimal places", Before: "it is rounded down to whole milliseconds"},
	{Since: 6, Trait: Backlog, Says: "conf shows clientPortListenBacklog", Before: "it does not"},
	{Since: 6, Trait: Learners, Says: "a leader's mntr has zk_learners", Before: "it has the same number as zk_followers"},
	{Since: 7, Trait: ISODates, Says: "the version ends with a date like 2023-10-06 09:51 UTC", Before: "with a date like 10/06/2023 09:51 GMT"},
	{Since: 6, Monitor: []string{
		"peer_state", "quorum_size", "synced_non_voting_followers", "synced_observers", "leader_uptime", "global_sessions", "local_sessions", "uptime",
		"last_client_response_size", "max_client_response_size", "min_client_response_size", "auth_failed_count", "bytes_received_count",
		"connection_drop_count", "connection_drop_probability", "connection_rejected", "connection_request_count", "connection_revalidate_count",
		"non_mtls_local_conn_count", "non_mtls_remote_conn_count", "outstanding_tls_handshake", "sessionless_connections_expired",
		"stale_sessions_expired", "tls_handshake_exceeded", "commit_count", "looking_count", "avg_election_time", "cnt_election_time",
		"sum_election_time", "avg_fsynctime", "cnt_fsynctime", "sum_fsynctime", "avg_snapshottime", "cnt_snapshottime", "sum_snapshottime",
	}, Before: "mntr does not show them"},
	{Since: 7, Monitor: []string{"cnxn_closed_without_zk_server_running", "response_bytes", "throttled_ops", "unsuccessful_handshake", "watch_bytes", quotaKeys},
		Before: "mntr does not show them"},

	{Since: 5, Commands: []string{
		"configuration", "connection_stat_reset", "connections", "dirs", "dump", "environment", "get_trace_mask", "is_read_only", "monitor", "ruok",
		"server_stats", "set_trace_mask", "stat_reset", "stats", "watch_summary", "watches", "watches_by_path", "zabstate",
	}, Before: "there is no AdminServer"},
	{Since: 6, Commands: []string{"hash", "initial_configuration", "leader", "voting_view"}, Before: "unknown"},
}

// quotaKeys stands for the lines of mntr about quotas, one for each namespace.
const quotaKeys = "*_per_namespace"

// Difference is something that older lines do and a persona does not.
type Difference struct {
	Before Line // the first line that does not do it any more
	Says   string
	Why    string
}

// Kept is what a persona keeps of the newest line, although the older line differs.
var Kept = []Difference{
	{5, "a handshake with a null password is never answered", "it is a bug that hangs the client"},
	{5, "a resumed session keeps the later of the deadlines that its old and its new timeout give", "the state would differ"},
	{5, "/zookeeper/config does not exist for writes either", "all members have the same znodes"},
	{5, "a null scheme in an ACL fails with MarshallingError", "no client sends one; it fails with InvalidACL"},
	{5, "names may contain the characters 1f, 7f, 9f, f8ff, fff0 and ffff (hexadecimal)", "all members have the same znodes"},
	{6, "a delete of a missing znode fails with NoNode, even without permission to delete there", "the answer is decided by the state that all members have; it fails with NoAuth"},
	{6, "an identity also applies to requests before its auth that still wait", "it is a bug"},
	{7, "limits and stats of quotas have a shorter form, and fewer checks", "all members have the same znodes"},
	{8, "a check outside of a multi is carried out, and may hang the connection", "it is a bug"},
	{8, "an event needs no READ permission", "it is a hole (CVE-2024-23944)"},
	{9, "checkWatches of an invalid path fails with MarshallingError while any client has a recursive watch", "it is a bug; it fails with NoWatcher"},
	{9, "after an addWatch of a null path, the connection hangs where it should end", "it is a bug"},
	{9, "a multi with a null path or a null in an ACL fails with the zxid before its own, and its reply has a body behind the error", "no client sends one"},
}
