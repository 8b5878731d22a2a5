package zkshell

import (
	"context"
	"slices"
	"strings"
)

// command is a command of the shell. Exactly one of run and shell is set.
type command struct {
	name, usage string // as zkCli lists them
	short       string // what it does
	options     []option
	describes   bool   // the usage text lists the options
	exclusive   bool   // at most one option
	needsOption bool   // exactly one option
	retains     bool   // accepts any second argument in place of -w, and says that it should not
	watching    string // the options that it then recommends
	least, most int    // arguments; most -1 is any number
	path        bool   // the first argument is a path
	local       bool   // needs no server

	run   func(s *Shell, ctx context.Context, p *parsed) (fields, error)
	shell func(s *Shell, ctx context.Context, args []string) (fields, error) // gets its words as they are
}

// commands are the commands in the order of help.
var commands []*command

func init() { // a variable's value could not refer to functions that use it
	stats := option{name: "s", help: "stats"}
	commands = []*command{
		{name: "ls", usage: "[-s] [-w] [-R] path", short: "list the children of a znode, with -R all descendants", most: -1,
			options: []option{{name: "?", help: "help"}, {name: "s", help: "stat"}, {name: "w", help: "watch"}, {name: "R", help: "recurse"}},
			retains: true, watching: "[-w]", run: ls},
		{name: "get", usage: "[-s] [-w] [-b] [-x] path", short: "print the data of a znode", most: -1, least: 1, describes: true,
			options: []option{
				{name: "s", help: "Print znode stats additionally"}, {name: "w", help: "Watch for changes on the znode"},
				{name: "b", help: "Output data in base64 format"}, {name: "x", help: "Output data in hexdump format"},
			},
			retains: true, watching: "[-s] [-w]", run: get},
		{name: "set", path: true, usage: "path data [-s] [-v version] [-b]", short: "replace the data of a znode", most: -1, least: 2, describes: true,
			options: []option{
				{name: "s", help: "Print znode stats additionally"}, {name: "v", arg: true, help: "Set with an expected version"},
				{name: "b", help: "Supply data in base64 format"},
			}, run: set},
		{name: "create", usage: "[-s] [-e] [-c] [-t ttl] path [data] [acl]", short: "create a znode: -e ephemeral, -s sequential, -c container, -t with a TTL in ms", most: -1, least: 1,
			options: []option{{name: "e", help: "ephemeral"}, {name: "s", help: "sequential"}, {name: "c", help: "container"}, {name: "t", arg: true, help: "ttl"}},
			run:     create},
		{name: "delete", path: true, usage: "[-v version] path", short: "delete a znode without children", most: -1, least: 1,
			options: []option{{name: "v", arg: true, help: "version"}}, run: remove},
		{name: "deleteall", path: true, usage: "path [-b batch size]", short: "delete a znode and everything below it", most: -1, least: 1,
			options: []option{{name: "b", arg: true, help: "batch size"}}, run: deleteAll},
		{name: "stat", usage: "[-w] path", short: "print the Stat of a znode", most: -1, least: 1,
			options: []option{{name: "w", help: "watch"}}, retains: true, watching: "[-w]", run: stat},
		{name: "getAcl", path: true, usage: "[-s] path", short: "print the ACL of a znode", most: -1, least: 1, options: []option{stats}, run: getACL},
		{name: "setAcl", path: true, usage: "[-s] [-v version] [-R] path acl", short: "replace the ACL of a znode, with -R also of all descendants", most: -1, least: 2,
			options: []option{stats, {name: "v", arg: true, help: "version"}, {name: "R", help: "recursive"}}, run: setACL},
		{name: "addauth", usage: "scheme auth", short: "prove an identity, such as digest user:password", most: -1, least: 1, run: addAuth},
		{name: "whoami", usage: "", short: "print the identities of this session", most: -1, run: whoAmI},
		{name: "sync", path: true, usage: "path", short: "wait until the server has applied what the leader has", most: -1, least: 1, run: syncPath},
		{name: "addWatch", path: true, usage: "[-m mode] path # optional mode is one of [PERSISTENT, PERSISTENT_RECURSIVE] - default is PERSISTENT_RECURSIVE",
			short: "watch a znode permanently", least: 1, most: 1, options: []option{{name: "m", arg: true}}, run: addWatch},
		{name: "removewatches", path: true, usage: "path [-c|-d|-a] [-l]", short: "remove watches of this session", most: -1, least: 1,
			options: []option{
				{name: "c", help: "child watcher type"}, {name: "d", help: "data watcher type"}, {name: "p", help: "persistent watcher type"},
				{name: "r", help: "persistent recursive watcher type"}, {name: "a", help: "any watcher type"},
				{name: "l", help: "remove locally when there is no server connection"},
			}, run: removeWatches},
		{name: "getEphemerals", path: true, usage: "path", short: "list the ephemeral znodes of this session", most: -1, run: getEphemerals},
		{name: "getAllChildrenNumber", path: true, usage: "path", short: "count the descendants of a znode", most: -1, least: 1, run: countDescendants},
		{name: "setquota", usage: "-n|-b|-N|-B val path", short: "limit the znodes or bytes below a znode", most: -1, least: 1,
			options:   []option{{name: "n", arg: true, help: "num soft quota"}, {name: "b", arg: true, help: "bytes soft quota"}, {name: "N", arg: true, help: "num hard quota"}, {name: "B", arg: true, help: "bytes hard quota"}},
			exclusive: true, needsOption: true, run: setQuota},
		{name: "listquota", usage: "path", short: "print a quota and what is used of it", most: -1, least: 1, run: listQuota},
		{name: "delquota", usage: "[-n|-b|-N|-B] path", short: "remove a quota", most: -1, least: 1,
			options:   []option{{name: "n", help: "num soft quota"}, {name: "b", help: "bytes soft quota"}, {name: "N", help: "num hard quota"}, {name: "B", help: "bytes hard quota"}},
			exclusive: true, run: deleteQuota},
		{name: "config", usage: "[-c] [-w] [-s]", short: "print the members of the cluster", most: -1,
			options: []option{stats, {name: "w", help: "watch"}, {name: "c", help: "client connection string"}}, run: config},
		{name: "reconfig", usage: "[-s] [-v version] [[-file path] | [-members serverID=host:port1:port2;port3[,...]*]] | [-add serverId=host:port1:port2;port3[,...]]* [-remove serverId[,...]*]",
			short: "change the members of the cluster", most: -1,
			options: []option{
				stats, {name: "v", arg: true, help: "required current config version"}, {name: "file", arg: true, help: "path of config file to parse for membership"},
				{name: "members", arg: true, help: "comma-separated list of config strings for non-incremental reconfig"},
				{name: "add", arg: true, help: "comma-separated list of config strings for new servers"},
				{name: "remove", arg: true, help: "comma-separated list of server IDs to remove"},
			}, run: reconfig},
		{name: "connect", usage: "host:port", short: "open a session with other servers", shell: connectTo},
		{name: "close", usage: "", short: "end the session", most: -1, run: closeSession},
		{name: "printwatches", usage: "on|off", short: "print events or not", shell: printWatches},
		{name: "history", usage: "", short: "list the last commands", shell: showHistory},
		{name: "redo", usage: "cmdno", short: "execute a command of the history again", shell: redo},
		{name: "version", usage: "", short: "print the version of lockkeeper", most: 0, run: version},
		{name: "quit", usage: "", short: "end the session and the shell", shell: quitShell},
		{name: "tree", path: true, usage: "[-d depth] [-l] [path]", short: "draw a subtree, with -l sizes and owners", most: 1,
			options: []option{{name: "d", arg: true, help: "levels below the path"}, {name: "l", help: "sizes and owners"}}, run: tree},
		{name: "export", usage: "file [path]", short: "write a subtree to a file, or continue that", least: 1, most: 2, run: export},
		{name: "import", usage: "[-e] [-f] file [path]", short: "create the znodes in such a file, or continue that", least: 1, most: 2,
			options: []option{{name: "e", help: "create ephemeral znodes as persistent ones"}, {name: "f", help: "overwrite znodes that differ"}}, run: importFile},
		{name: "help", usage: "[command]", short: "explain a command, or list all", local: true, shell: help},
	}
}

// find returns the command with the name, or nil.
func find(name string) *command {
	i := slices.IndexFunc(commands, func(c *command) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return commands[i]
}

// sorted returns the commands by name, as zkCli lists them.
func sorted() []*command {
	return slices.SortedFunc(slices.Values(commands), func(a, b *command) int { return strings.Compare(a.name, b.name) })
}

// Command is a command for documentation.
type Command struct {
	Name, Usage, Does string
}

// Commands lists the commands.
func Commands() (all []Command) {
	for _, c := range commands {
		all = append(all, Command{c.name, c.usage, c.short})
	}
	return all
}

func help(s *Shell, _ context.Context, args []string) (fields, error) {
	if len(args) == 0 {
		for _, c := range commands {
			s.println(strings.TrimRight(c.name+" "+c.usage, " ") + "\n    " + c.short)
		}
		return fields{"commands": Commands()}, nil
	}
	c := find(args[0])
	if c == nil {
		return nil, &cliError{text: "Command not found: " + args[0], exit: exitNotFound}
	}
	s.println(strings.TrimRight(c.name+" "+c.usage, " ") + "\n    " + c.short)
	for _, o := range c.options {
		name := "-" + o.name
		if o.arg {
			name += " <arg>"
		}
		s.println("    " + strings.TrimRight(name+"  "+o.help, " "))
	}
	return fields{"name": c.name, "usage": c.usage, "does": c.short}, nil
}

// version prints the version of lockkeeper, where zkCli prints that of ZooKeeper.
func version(s *Shell, _ context.Context, _ *parsed) (fields, error) {
	s.println("lockkeeper CLI version: " + s.cfg.Version)
	return fields{"version": s.cfg.Version}, nil
}
