package zkshell

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/jute"
	"github.com/lockkeeper/lockkeeper/proto"
)

// The commands for quotas and members.

// Where quotas are (Quotas).
const (
	quotaRoot  = "/zookeeper/quota"
	limitsName = "zookeeper_limits"
	usageName  = "zookeeper_stats"
)

// quota is the content of a znode with limits or usage (StatsTrack). A missing key is -1.
type quota map[string]int64

// The keys, which are also those of the JSON output.
const (
	quotaCount     = "count"
	quotaBytes     = "bytes"
	quotaCountHard = "countHardLimit"
	quotaBytesHard = "byteHardLimit"
)

func parseQuota(data []byte) (quota, error) {
	q := quota{}
	for pair := range strings.FieldsFuncSeq(string(data), func(r rune) bool { return r == ',' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		value, _, _ = strings.Cut(value, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, usage(notANumber(value))
		}
		q[key] = n
	}
	return q, nil
}

func (q quota) get(key string) int64 {
	if n, ok := q[key]; ok {
		return n
	}
	return -1
}

// String returns the content of the znode. An equals sign follows the older limits, so that
// old servers ignore the rest.
func (q quota) String() string {
	text := fmt.Sprintf("count=%d,bytes=%d", q.get(quotaCount), q.get(quotaBytes))
	rest := slices.DeleteFunc(slices.Sorted(maps.Keys(q)), func(key string) bool { return key == quotaCount || key == quotaBytes })
	if len(rest) > 0 {
		text += "="
	}
	for _, key := range rest {
		text += fmt.Sprintf(";%s=%d", key, q[key])
	}
	return text
}

func (s *Shell) readQuota(ctx context.Context, path string) (quota, error) {
	var r proto.DataReply
	if err := s.watching(ctx, proto.OpGetData, path, false, watchData, &r); err != nil {
		return nil, err
	}
	return parseQuota(r.Data)
}

func (s *Shell) exists(ctx context.Context, path string) (bool, error) {
	err := s.watching(ctx, proto.OpExists, path, false, watchData, nil)
	if errors.Is(err, proto.NoNode) {
		return false, nil
	}
	return err == nil, err
}

func (s *Shell) children(ctx context.Context, path string) ([]string, error) {
	var r proto.ChildrenReply
	err := s.watching(ctx, proto.OpGetChildren, path, false, watchChild, &r)
	slices.Sort(r.Names)
	return r.Names, err
}

func setQuota(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	if strings.HasPrefix(path, quotaRoot) {
		s.note("cannot set a quota under the path: " + quotaRoot)
		return nil, nil
	}
	limits := quota{quotaCount: -1, quotaBytes: -1, quotaCountHard: -1, quotaBytesHard: -1}
	for option, key := range map[string]string{"n": quotaCount, "b": quotaBytes, "N": quotaCountHard, "B": quotaBytesHard} {
		if !p.has(option) {
			continue
		}
		bits := 32
		if strings.EqualFold(option, "b") {
			bits = 64
		}
		n, err := strconv.ParseInt(p.values[option], 10, bits)
		switch {
		case err != nil:
			s.note("NumberFormatException happens when parsing the option value")
			return nil, nil
		case bits == 32 && n <= 0:
			s.note("the num quota must be greater than zero")
			return nil, nil
		case n < 0:
			s.note("the bytes quota must be greater than or equal to zero")
			return nil, nil
		}
		limits[key] = n
	}
	if err := s.createQuota(ctx, path, limits); err != nil {
		return nil, err
	}
	return fields{"path": path}, nil
}

// createQuota sets the limits that are not negative (SetQuotaCommand.createQuota).
func (s *Shell) createQuota(ctx context.Context, path string, limits quota) error {
	there, err := s.exists(ctx, path)
	if err != nil {
		return wrap(err, path)
	}
	if !there {
		return usage(path + " does not exist.")
	}
	if err := s.otherQuota(ctx, path); err != nil {
		return err
	}
	// The znodes for limits and usage go below one with the path of the znode.
	at := quotaRoot
	for name := range strings.SplitSeq(path[1:], "/") {
		at += "/" + name
		if there, err := s.exists(ctx, at); err != nil {
			return wrap(err, at)
		} else if !there {
			if err := s.createPlain(ctx, at, nil); err != nil && !errors.Is(err, proto.NodeExists) {
				return wrap(err, at)
			}
		}
	}
	limitsPath, usagePath := at+"/"+limitsName, at+"/"+usageName
	there, err = s.exists(ctx, limitsPath)
	if err != nil {
		return wrap(err, limitsPath)
	}
	if !there {
		if err := s.createPlain(ctx, limitsPath, []byte(limits.String())); err != nil {
			return wrap(err, limitsPath)
		}
		if err := s.createPlain(ctx, usagePath, []byte(quota{quotaCount: 0, quotaBytes: 0}.String())); err != nil {
			return wrap(err, usagePath)
		}
	}
	old, err := s.readQuota(ctx, limitsPath)
	if err != nil {
		return wrap(err, limitsPath)
	}
	for key, n := range limits {
		if n > -1 {
			old[key] = n
		}
	}
	used, err := s.readQuota(ctx, usagePath)
	if err != nil {
		return wrap(err, usagePath)
	}
	s.warnQuota(old, used)
	if !there {
		return nil
	}
	return wrap(s.call(ctx, proto.OpSetData, &proto.SetDataRequest{Path: s.client.server(limitsPath), Data: []byte(old.String()), Version: proto.AnyVersion}, nil), limitsPath)
}

func (s *Shell) createPlain(ctx context.Context, path string, data []byte) error {
	_, err := s.createZnode(ctx, proto.CreateRequest{Path: path, Data: data, ACL: proto.OpenACL}, false, 0)
	return err
}

// warnQuota says if more is used than the limits allow.
func (s *Shell) warnQuota(limits, used quota) {
	over := func(soft, hard, key string) bool {
		n := used.get(key)
		return limits.get(soft) > -1 && limits.get(soft) < n || limits.get(hard) > -1 && limits.get(hard) < n
	}
	if over(quotaCount, quotaCountHard, quotaCount) {
		s.println(fmt.Sprintf("[Warning]: the count quota you create is less than the existing count:%d", used.get(quotaCount)))
	}
	if over(quotaBytes, quotaBytesHard, quotaBytes) {
		s.println(fmt.Sprintf("[Warning]: the bytes quota you create is less than the existing bytes:%d", used.get(quotaBytes)))
	}
}

// otherQuota returns an error if a znode above or below has a quota.
func (s *Shell) otherQuota(ctx context.Context, path string) error {
	own := quotaRoot + path
	// For "/" this is an error, as a quota of the root stops ZooKeeper 3.9.
	err := s.visit(ctx, own, false, func(at string) error {
		names, err := s.children(ctx, at)
		if errors.Is(err, proto.NoNode) {
			return nil
		}
		if err == nil && at != own && slices.Contains(names, limitsName) {
			return usage(path + " has a child " + strings.TrimPrefix(at, quotaRoot) + " which has a quota")
		}
		return err
	})
	if err != nil && !errors.Is(err, proto.NoNode) {
		return wrap(err, own)
	}
	at, parts := quotaRoot, strings.Split(path, "/")
	for _, name := range parts[1 : len(parts)-1] {
		at += "/" + name
		names, err := s.children(ctx, at)
		if errors.Is(err, proto.NoNode) || err == nil && len(names) == 0 {
			return nil
		}
		if err != nil {
			return wrap(err, at)
		}
		if slices.Contains(names, limitsName) {
			return usage(path + " has a parent " + strings.TrimPrefix(at, quotaRoot) + " which has a quota")
		}
	}
	return nil
}

func listQuota(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	limitsPath, usagePath := quotaRoot+path+"/"+limitsName, quotaRoot+path+"/"+usageName
	s.note("absolute path is " + limitsPath)
	limits, err := s.readQuota(ctx, limitsPath)
	var used quota
	if err == nil {
		used, err = s.readQuota(ctx, usagePath)
	}
	if errors.Is(err, proto.NoNode) {
		s.note("quota for " + path + " does not exist.")
		return nil, nil
	}
	if err != nil {
		return nil, wrap(err, limitsPath)
	}
	s.println("Output quota for " + path + " " + limits.String())
	s.println("Output stat for " + path + " " + used.String())
	return fields{"path": path, "limits": limits, "used": used}, nil
}

func deleteQuota(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	path := p.args[0]
	own := quotaRoot + path
	limitsPath := own + "/" + limitsName
	there, err := s.exists(ctx, limitsPath)
	if err != nil {
		return nil, wrap(err, limitsPath)
	}
	if !there {
		s.println("Quota does not exist for " + path)
		return nil, nil
	}
	err = s.dropQuota(ctx, own, limitsPath, p)
	if errors.Is(err, proto.NoNode) {
		s.note("quota for " + path + " does not exist.")
		return nil, nil
	}
	return fields{"path": path}, wrap(err, path)
}

// dropQuota removes the limits that the options name, or else the quota and the znodes above
// that nothing needs any more.
func (s *Shell) dropQuota(ctx context.Context, own, limitsPath string, p *parsed) error {
	limits, err := s.readQuota(ctx, limitsPath)
	if err != nil {
		return err
	}
	if len(p.values) > 0 {
		for option, key := range map[string]string{"n": quotaCount, "b": quotaBytes, "N": quotaCountHard, "B": quotaBytesHard} {
			if p.has(option) {
				limits[key] = -1
			}
		}
		return s.call(ctx, proto.OpSetData, &proto.SetDataRequest{Path: s.client.server(limitsPath), Data: []byte(limits.String()), Version: proto.AnyVersion}, nil)
	}
	remove := func(path string) error {
		return s.call(ctx, proto.OpDelete, &proto.PathVersion{Path: s.client.server(path), Version: proto.AnyVersion}, nil)
	}
	names, err := s.children(ctx, own)
	for _, name := range names {
		if err == nil {
			err = remove(own + "/" + name)
		}
	}
	for at := own; err == nil && at != quotaRoot; at = at[:strings.LastIndexByte(at, '/')] {
		if names, err = s.children(ctx, at); err != nil || len(names) > 0 {
			return err
		}
		err = remove(at)
	}
	return err
}

// configPath is the znode with the members. It is the same with a chroot.
const configPath = "/zookeeper/config"

func config(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	var finish func(proto.Code)
	if p.has("w") {
		finish = s.client.watch(proto.OpGetData, watchData, configPath)
	}
	var r proto.DataReply
	if err := s.client.start(ctx, proto.OpGetData, &proto.PathWatch{Path: configPath, Watch: p.has("w")}, finish).wait(ctx, &r); err != nil {
		return nil, wrap(err, configPath)
	}
	text := "null"
	if r.Data != nil {
		text = string(r.Data)
	}
	result := fields{"config": text}
	if p.has("c") {
		text = clientServers(text)
		result = fields{"servers": text}
	}
	s.println(text)
	s.showStat(p, result, &r.Stat)
	return result, nil
}

// clientServers returns the version of a configuration and the client ports in it
// (ConfigUtils.getClientConfigStr).
func clientServers(config string) string {
	version := ""
	for line := range strings.Lines(config) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "version="); ok {
			version = v
		}
	}
	servers, _ := proto.ParseServers(config)
	var clients []string
	for _, s := range servers {
		if c := s.ClientAddr; c != "" {
			if strings.HasPrefix(c, ":") {
				c = "0.0.0.0" + c
			}
			clients = append(clients, c)
		}
	}
	return version + " " + strings.Join(clients, ",")
}

func reconfig(s *Shell, ctx context.Context, p *parsed) (fields, error) {
	all, incremental := p.has("file") || p.has("members"), p.has("add") || p.has("remove")
	if !all && !incremental {
		return nil, usage(find("reconfig").usageText())
	}
	q := proto.ReconfigRequest{ConfigID: -1}
	if v, ok := p.values["v"]; ok {
		n, err := strconv.ParseInt(v, 16, 64)
		if err != nil {
			return nil, usage("-v must be followed by a long (configuration version)")
		}
		q.ConfigID = n
	}
	if all && incremental {
		return nil, usage("Can't use -file or -members together with -add or -remove (mixing incremental and non-incremental modes is not allowed)")
	}
	if p.has("file") && p.has("members") {
		return nil, usage("Can't use -file and -members together (conflicting non-incremental modes)")
	}
	list := func(option string) proto.Path {
		if !p.has(option) {
			return proto.Path{Path: jute.Null}
		}
		return proto.Path{Path: strings.ToLower(p.values[option])}
	}
	q.Joining, q.Leaving, q.NewMembers = list("add"), list("remove"), list("members")
	if p.has("file") {
		members, err := membersOf(p.values["file"])
		if err != nil {
			return nil, usage("Error processing " + p.values["file"] + err.Error())
		}
		q.NewMembers = proto.Path{Path: members}
	}
	var r proto.DataReply
	if err := s.call(ctx, proto.OpReconfig, &q, &r); err != nil {
		return nil, wrap(err, "")
	}
	s.println("Committed new configuration:\n" + string(r.Data))
	result := fields{"config": string(r.Data)}
	s.showStat(p, result, &r.Stat)
	return result, nil
}

// membersOf returns the servers in a configuration file, one in each line.
func membersOf(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "server.") {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		s, err := proto.ParseServer(strings.TrimSpace(key), strings.TrimSpace(value))
		if err != nil {
			return "", err
		}
		fmt.Fprintln(&b, s)
	}
	return b.String(), nil
}
