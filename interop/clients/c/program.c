/* Runs the C client and checks what it gets; clients_test.go says how. */

#define THREADED
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

#define FAR 60 /* seconds; only decides when a case gives up */
#define LONG_SESSION 10000 /* ms, as long as a restart may take on a busy machine */
#define SHORT_SESSION 3000 /* ms, of sessions that expire */

static const char *wire, *direct;

/* A case returns why it failed, or NULL. */
static char *failure(const char *format, ...) {
	char *text;
	va_list args;
	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		abort();
	va_end(args);
	return text;
}

#define CHECK(what) \
	do { \
		if (!(what)) \
			return failure("line %d: %s", __LINE__, #what); \
	} while (0)
#define RC(call, want) \
	do { \
		int rc_ = (call); \
		if (rc_ != (want)) \
			return failure("line %d: %s gives %s, not %s", __LINE__, #call, zerror(rc_), zerror(want)); \
	} while (0)
#define OK(call) RC(call, ZOK)

static char *join(const char *a, const char *b) {
	char *joined = failure("%s%s", a, b);
	return joined;
}

static struct timespec deadline(void) {
	struct timespec at;
	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_sec += FAR;
	return at;
}

static void ask(const char *what) {
	char answer[16];
	printf("do %s\n", what);
	fflush(stdout);
	if (!fgets(answer, sizeof answer, stdin) || strcmp(answer, "done\n"))
		exit(1);
}

/* A tape remembers what a watcher was told. */
struct tape {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	int count;
	struct {
		int type, state;
		char path[200];
	} told[100];
};

static struct tape *new_tape(void) {
	struct tape *tape = calloc(1, sizeof *tape);
	pthread_mutex_init(&tape->mutex, NULL);
	pthread_cond_init(&tape->more, NULL);
	return tape;
}

static void record(struct tape *tape, int type, int state, const char *path) {
	pthread_mutex_lock(&tape->mutex);
	if (tape->count < 100) {
		tape->told[tape->count].type = type;
		tape->told[tape->count].state = state;
		snprintf(tape->told[tape->count].path, sizeof tape->told[0].path, "%s", path);
		tape->count++;
	}
	pthread_cond_broadcast(&tape->more);
	pthread_mutex_unlock(&tape->mutex);
}

/* on_session is the watcher of the handle itself. */
static void on_session(zhandle_t *zh, int type, int state, const char *path, void *context) {
	(void)context;
	if (type == ZOO_SESSION_EVENT)
		record((struct tape *)zoo_get_context(zh), type, state, path);
}

/* on_event is the watcher of a znode; all of those hear of the session too. */
static void on_event(zhandle_t *zh, int type, int state, const char *path, void *context) {
	(void)zh;
	if (type != ZOO_SESSION_EVENT)
		record(context, type, state, path);
}

static int told(struct tape *tape) {
	pthread_mutex_lock(&tape->mutex);
	int count = tape->count;
	pthread_mutex_unlock(&tape->mutex);
	return count;
}

/* event waits for the tape's entry number n, from 0, and compares it. */
static bool event(struct tape *tape, int n, int type, int state, const char *path) {
	struct timespec until = deadline();
	pthread_mutex_lock(&tape->mutex);
	while (tape->count <= n && !pthread_cond_timedwait(&tape->more, &tape->mutex, &until))
		;
	bool same = tape->count > n && tape->told[n].type == type && tape->told[n].state == state && !strcmp(tape->told[n].path, path);
	if (!same && tape->count > n)
		fprintf(stderr, "event %d is type %d, state %d, path %s\n", n, tape->told[n].type, tape->told[n].state, tape->told[n].path);
	pthread_mutex_unlock(&tape->mutex);
	return same;
}

/* state waits until the handle says that it is in a state. */
static bool state(zhandle_t *zh, int want) {
	struct tape *tape = (struct tape *)zoo_get_context(zh);
	struct timespec until = deadline();
	bool timely = true;
	pthread_mutex_lock(&tape->mutex);
	while ((tape->count == 0 || tape->told[tape->count - 1].state != want) && timely)
		timely = !pthread_cond_timedwait(&tape->more, &tape->mutex, &until);
	pthread_mutex_unlock(&tape->mutex);
	return timely;
}

static zhandle_t *handle(const char *hosts, int timeout, const clientid_t *id) {
	return zookeeper_init(hosts, on_session, timeout, id, new_tape(), 0);
}

static zhandle_t *connected(const char *hosts, int timeout) {
	zhandle_t *zh = handle(hosts, timeout, NULL);
	if (!zh || !state(zh, ZOO_CONNECTED_STATE)) {
		fprintf(stderr, "no connection to %s\n", hosts);
		exit(1);
	}
	return zh;
}

static int make(zhandle_t *zh, const char *path, const char *data, int mode) {
	return zoo_create(zh, path, data, (int)strlen(data), &ZOO_OPEN_ACL_UNSAFE, mode, NULL, 0);
}

static bool holds(zhandle_t *zh, const char *path, const char *want) {
	char data[100];
	int length = sizeof data;
	if (zoo_get(zh, path, 0, data, &length, NULL) != ZOK)
		return false;
	return length == (int)strlen(want) && !memcmp(data, want, strlen(want));
}

/* gone waits until there is no such znode. A closed handle does not wait until
   the server has ended its session. */
static bool gone(zhandle_t *zh, const char *path) {
	struct tape *tape = new_tape();
	int rc = zoo_wexists(zh, path, on_event, tape, NULL);
	return rc == ZNONODE || (rc == ZOK && event(tape, 0, ZOO_DELETED_EVENT, ZOO_CONNECTED_STATE, path));
}

static char *case_create_modes(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	char made[200];
	struct Stat stat, again;

	OK(zoo_create(zh, path, "data", 4, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, made, sizeof made));
	CHECK(!strcmp(made, path));
	RC(make(zh, path, "", 0), ZNODEEXISTS);
	RC(make(zh, join(path, "/none/child"), "", 0), ZNONODE);
	RC(make(zh, join(path, "/"), "", 0), ZBADARGUMENTS);
	OK(zoo_create(zh, join(path, "/e"), NULL, -1, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0));
	OK(zoo_exists(zh, join(path, "/e"), 0, &stat));
	CHECK(stat.ephemeralOwner == zoo_client_id(zh)->client_id);
	RC(make(zh, join(path, "/e/child"), "", 0), ZNOCHILDRENFOREPHEMERALS);
	OK(zoo_create(zh, join(path, "/s-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_SEQUENTIAL, made, sizeof made));
	CHECK(!strcmp(made, join(path, "/s-0000000001")));
	OK(zoo_create(zh, join(path, "/s-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, made, sizeof made));
	CHECK(!strcmp(made, join(path, "/s-0000000002")));

	OK(zoo_create2(zh, join(path, "/two"), "12345", 5, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, made, sizeof made, &stat));
	CHECK(!strcmp(made, join(path, "/two")) && stat.dataLength == 5 && stat.version == 0 && stat.czxid == stat.mzxid);
	OK(zoo_exists(zh, made, 0, &again));
	CHECK(again.czxid == stat.czxid && again.ctime == stat.ctime && again.pzxid == stat.pzxid && again.dataLength == 5);

	OK(make(zh, join(path, "/c"), "", ZOO_CONTAINER));
	OK(zoo_exists(zh, join(path, "/c"), 0, &stat));
	CHECK(stat.ephemeralOwner == 0);
	OK(make(zh, join(path, "/c/child"), "", 0));
	OK(zoo_create_ttl(zh, join(path, "/t"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_WITH_TTL, 3600000, NULL, 0));
	OK(zoo_create2_ttl(zh, join(path, "/t-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_SEQUENTIAL_WITH_TTL, 3600000, made, sizeof made, &stat));
	CHECK(!strcmp(made, join(path, "/t-0000000006")) && stat.ephemeralOwner == 0);
	RC(zoo_create_ttl(zh, join(path, "/t0"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_WITH_TTL, 0, NULL, 0), ZBADARGUMENTS);

	RC(zoo_delete(zh, path, -1), ZNOTEMPTY);
	RC(zoo_delete(zh, made, 3), ZBADVERSION);
	OK(zoo_delete(zh, made, 0));
	RC(zoo_delete(zh, made, -1), ZNONODE);
	OK(zookeeper_close(zh));

	/* The closed session has taken its two ephemerals. */
	struct String_vector names;
	zh = connected(wire, LONG_SESSION);
	CHECK(gone(zh, join(path, "/e")));
	OK(zoo_get_children2(zh, path, 0, &names, &stat));
	CHECK(names.count == 4 && stat.numChildren == 4 && stat.cversion == 7 + 3);
	OK(zookeeper_close(zh));
	return NULL;
}

static char *case_data(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	struct Stat stat;
	static char large[1 << 20], back[1 << 20];
	int length = sizeof back;

	OK(zoo_create(zh, path, NULL, -1, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
	OK(zoo_get(zh, path, 0, back, &length, &stat));
	CHECK(length == -1 && stat.dataLength == 0);
	OK(zoo_set2(zh, path, "one", 3, 0, &stat));
	CHECK(stat.version == 1 && stat.dataLength == 3);
	RC(zoo_set(zh, path, "two", 3, 0), ZBADVERSION);
	CHECK(holds(zh, path, "one"));
	RC(zoo_set(zh, join(path, "/none"), "", 0, -1), ZNONODE);
	RC(zoo_get(zh, join(path, "/none"), 0, back, &length, NULL), ZNONODE);
	RC(zoo_exists(zh, join(path, "/none"), 0, NULL), ZNONODE);

	for (size_t i = 0; i < sizeof large; i++)
		large[i] = (char)(i * 31 >> 3);
	int most = sizeof large - 200;
	OK(zoo_set(zh, path, large, most, 1));
	length = sizeof back;
	OK(zoo_get(zh, path, 0, back, &length, NULL));
	CHECK(length == most && !memcmp(large, back, most));
	OK(zookeeper_close(zh));

	/* The rest of the address is a root. */
	zh = connected(join(direct, path), LONG_SESSION);
	OK(make(zh, "/here", "chroot", 0));
	OK(zookeeper_close(zh));
	zh = connected(wire, LONG_SESSION);
	CHECK(holds(zh, join(path, "/here"), "chroot"));
	OK(zookeeper_close(zh));
	return NULL;
}

/* done counts completions, which must come in order and well. */
struct done {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	int count, wrong;
	int64_t zxid;
	char text[200];
};

static struct done *new_done(void) {
	struct done *done = calloc(1, sizeof *done);
	pthread_mutex_init(&done->mutex, NULL);
	pthread_cond_init(&done->more, NULL);
	return done;
}

static void complete(struct done *done, int rc, bool good) {
	pthread_mutex_lock(&done->mutex);
	done->count++;
	if (rc != ZOK || !good)
		done->wrong++;
	pthread_cond_broadcast(&done->more);
	pthread_mutex_unlock(&done->mutex);
}

static bool completed(struct done *done, int want) {
	struct timespec until = deadline();
	pthread_mutex_lock(&done->mutex);
	while (done->count < want && !pthread_cond_timedwait(&done->more, &done->mutex, &until))
		;
	bool all = done->count == want && done->wrong == 0;
	pthread_mutex_unlock(&done->mutex);
	return all;
}

static void on_numbered(int rc, const char *made, const void *context) {
	struct done *done = (struct done *)context;
	complete(done, rc, made && atoi(strrchr(made, '-') + 1) == done->count);
}

static void on_data(int rc, const char *data, int length, const struct Stat *stat, const void *context) {
	struct done *done = (struct done *)context;
	char want[20];
	int digits = snprintf(want, sizeof want, "%d", done->count);
	complete(done, rc, data && length == digits && !memcmp(data, want, digits) && stat->czxid > done->zxid);
	if (stat)
		done->zxid = stat->czxid;
}

static void on_void(int rc, const void *context) { complete((struct done *)context, rc, true); }

static void on_stat(int rc, const struct Stat *stat, const void *context) {
	complete((struct done *)context, rc, stat && stat->version == 1);
}

static void on_string(int rc, const char *value, const void *context) {
	struct done *done = (struct done *)context;
	complete(done, rc, value && !strcmp(value, done->text));
}

static void on_string_stat(int rc, const char *value, const struct Stat *stat, const void *context) {
	struct done *done = (struct done *)context;
	complete(done, rc, value && stat && !strcmp(value, done->text) && stat->version == 0);
}

static void on_strings(int rc, const struct String_vector *strings, const void *context) {
	complete((struct done *)context, rc, strings && strings->count == 1 && !strcmp(strings->data[0], "child"));
}

static void on_strings_stat(int rc, const struct String_vector *strings, const struct Stat *stat, const void *context) {
	complete((struct done *)context, rc, strings && strings->count == 1 && stat->numChildren == 1);
}

static void on_acl(int rc, struct ACL_vector *acl, struct Stat *stat, const void *context) {
	complete((struct done *)context, rc, acl && acl->count == 1 && acl->data[0].perms == ZOO_PERM_ALL && stat->aversion == 1);
}

static char *case_async_pipeline(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	struct done *made = new_done(), *got = new_done();
	char text[20], name[200];
	OK(make(zh, path, "", 0));
	for (int i = 0; i < 1000; i++) {
		int length = snprintf(text, sizeof text, "%d", i);
		OK(zoo_acreate(zh, join(path, "/n-"), text, length, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_SEQUENTIAL, on_numbered, made));
	}
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof name, "%s/n-%010d", path, i);
		OK(zoo_aget(zh, name, 0, on_data, got));
	}
	CHECK(completed(made, 1000));
	CHECK(completed(got, 1000));
	OK(zookeeper_close(zh));
	return NULL;
}

static char *case_async_operations(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	struct done *done = new_done();
	char *child = join(path, "/child");
	OK(make(zh, path, "", 0));
	snprintf(done->text, sizeof done->text, "%s", child);
	OK(zoo_acreate2(zh, child, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, on_string_stat, done));
	OK(zoo_aset(zh, child, "x", 1, 0, on_stat, done));
	OK(zoo_aexists(zh, child, 0, on_stat, done));
	OK(zoo_aget_children(zh, path, 0, on_strings, done));
	OK(zoo_aget_children2(zh, path, 0, on_strings_stat, done));
	OK(zoo_aset_acl(zh, child, 0, &ZOO_OPEN_ACL_UNSAFE, on_void, done));
	OK(zoo_aget_acl(zh, child, on_acl, done));
	OK(zoo_async(zh, child, on_string, done));
	OK(zoo_adelete(zh, child, 1, on_void, done));
	CHECK(completed(done, 9));
	struct done *bad = new_done();
	OK(zoo_adelete(zh, child, -1, on_void, bad));
	CHECK(!completed(bad, 1) && bad->wrong == 1);
	OK(zookeeper_close(zh));
	return NULL;
}

static char *case_multi(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	zoo_op_t ops[5];
	zoo_op_result_t results[5];
	char made[200], second[200];
	struct Stat stat;
	OK(make(zh, path, "", 0));
	zoo_create_op_init(&ops[0], join(path, "/a"), "1", 1, &ZOO_OPEN_ACL_UNSAFE, 0, made, sizeof made);
	zoo_create_op_init(&ops[1], join(path, "/s-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, second, sizeof second);
	zoo_set_op_init(&ops[2], path, "set", 3, 0, &stat);
	zoo_check_op_init(&ops[3], path, 1); /* sees the change before it */
	zoo_delete_op_init(&ops[4], join(path, "/a"), 0);
	OK(zoo_multi(zh, 5, ops, results));
	for (int i = 0; i < 5; i++)
		OK(results[i].err);
	CHECK(!strcmp(made, join(path, "/a")) && !strcmp(second, join(path, "/s-0000000001")) && stat.version == 1);
	CHECK(holds(zh, path, "set"));
	RC(zoo_exists(zh, made, 0, NULL), ZNONODE);
	OK(zoo_exists(zh, second, 0, NULL));

	struct done *done = new_done();
	zoo_set_op_init(&ops[0], path, "async", 5, 1, &stat);
	OK(zoo_amulti(zh, 1, ops, results, on_void, done));
	CHECK(completed(done, 1) && stat.version == 2);
	CHECK(holds(zh, path, "async"));
	OK(zookeeper_close(zh));
	return NULL;
}

static char *case_failed_multi(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	zoo_op_t ops[4];
	zoo_op_result_t results[4];
	OK(make(zh, path, "kept", 0));
	zoo_create_op_init(&ops[0], join(path, "/a"), "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
	zoo_check_op_init(&ops[1], path, 9);
	zoo_set_op_init(&ops[2], path, "lost", 4, -1, NULL);
	zoo_delete_op_init(&ops[3], join(path, "/none"), -1);
	RC(zoo_multi(zh, 4, ops, results), ZBADVERSION);
	OK(results[0].err);
	RC(results[1].err, ZBADVERSION);
	RC(results[2].err, ZRUNTIMEINCONSISTENCY);
	RC(results[3].err, ZRUNTIMEINCONSISTENCY);
	RC(zoo_exists(zh, join(path, "/a"), 0, NULL), ZNONODE);
	CHECK(holds(zh, path, "kept"));
	OK(zookeeper_close(zh));
	return NULL;
}

static char *case_watches(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION), *other = connected(direct, LONG_SESSION);
	struct tape *exist = new_tape(), *data = new_tape(), *children = new_tape();
	struct String_vector names;
	char buffer[10];
	int length = sizeof buffer;
	char *child = join(path, "/child");
	RC(zoo_wexists(zh, path, on_event, exist, NULL), ZNONODE);
	OK(make(other, path, "", 0));
	CHECK(event(exist, 0, ZOO_CREATED_EVENT, ZOO_CONNECTED_STATE, path));
	OK(zoo_wget(zh, path, on_event, data, buffer, &length, NULL));
	OK(zoo_wget_children(zh, path, on_event, children, &names));
	OK(zoo_set(other, path, "x", 1, -1));
	CHECK(event(data, 0, ZOO_CHANGED_EVENT, ZOO_CONNECTED_STATE, path));
	OK(make(other, child, "", 0));
	CHECK(event(children, 0, ZOO_CHILD_EVENT, ZOO_CONNECTED_STATE, path));
	OK(zoo_wget(zh, child, on_event, data, buffer, &length, NULL));
	OK(zoo_wget_children(zh, child, on_event, children, &names));
	OK(zoo_set_acl(other, child, -1, &ZOO_OPEN_ACL_UNSAFE)); /* tells nobody */
	OK(zoo_delete(other, child, -1));
	CHECK(event(data, 1, ZOO_DELETED_EVENT, ZOO_CONNECTED_STATE, child));
	CHECK(event(children, 1, ZOO_DELETED_EVENT, ZOO_CONNECTED_STATE, child));
	OK(zoo_set(other, path, "y", 1, -1)); /* told once already */
	CHECK(holds(zh, path, "y"));
	CHECK(told(exist) == 1 && told(data) == 2 && told(children) == 2);
	/* A failed read sets no watch. */
	RC(zoo_wget(zh, child, on_event, data, buffer, &length, NULL), ZNONODE);
	OK(make(other, child, "", 0));
	OK(zoo_exists(zh, child, 0, NULL));
	CHECK(told(data) == 2);
	OK(zookeeper_close(zh));
	OK(zookeeper_close(other));
	return NULL;
}

static char *case_remove_watches(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION), *other = connected(direct, LONG_SESSION);
	struct tape *one = new_tape(), *two = new_tape(), *children = new_tape();
	struct String_vector names;
	char buffer[10];
	int length = sizeof buffer;
	OK(make(zh, path, "", 0));
	RC(zoo_remove_watches(zh, path, ZWATCHTYPE_DATA, on_event, one, 0), ZNOWATCHER);
	OK(zoo_wget(zh, path, on_event, one, buffer, &length, NULL));
	OK(zoo_wget(zh, path, on_event, two, buffer, &length, NULL));
	OK(zoo_wget_children(zh, path, on_event, children, &names));
	RC(zoo_remove_watches(zh, path, ZWATCHTYPE_CHILD, on_event, one, 0), ZNOWATCHER);
	OK(zoo_remove_watches(zh, path, ZWATCHTYPE_DATA, on_event, one, 0));
	OK(zoo_set(other, path, "x", 1, -1));
	CHECK(event(two, 0, ZOO_CHANGED_EVENT, ZOO_CONNECTED_STATE, path));
	OK(zoo_wget(zh, path, on_event, two, buffer, &length, NULL));
	OK(zoo_remove_all_watches(zh, path, ZWATCHTYPE_ANY, 0));
	RC(zoo_remove_all_watches(zh, path, ZWATCHTYPE_ANY, 0), ZNOWATCHER);
	OK(zoo_set(other, path, "y", 1, -1));
	OK(make(other, join(path, "/child"), "", 0));
	OK(zoo_exists(zh, join(path, "/child"), 0, NULL));
	CHECK(told(one) == 0 && told(two) == 1 && told(children) == 0);
	OK(zookeeper_close(zh));
	OK(zookeeper_close(other));
	return NULL;
}

static char *case_acl_and_auth(const char *path) {
	zhandle_t *alice = connected(wire, LONG_SESSION), *bob = connected(direct, LONG_SESSION);
	struct ACL_vector acl;
	struct Stat stat;
	struct String_vector names;
	RC(zoo_create(alice, path, "", 0, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0), ZINVALIDACL);
	struct done *done = new_done();
	OK(zoo_add_auth(alice, "digest", "alice:secret", 12, on_void, done));
	OK(zoo_create(alice, path, "hers", 4, &ZOO_CREATOR_ALL_ACL, 0, NULL, 0));
	CHECK(completed(done, 1));
	OK(zoo_get_acl(alice, path, &acl, &stat));
	CHECK(acl.count == 1 && acl.data[0].perms == ZOO_PERM_ALL && !strcmp(acl.data[0].id.scheme, "digest"));
	CHECK(!strncmp(acl.data[0].id.id, "alice:", 6) && stat.aversion == 0);
	CHECK(!holds(bob, path, "hers"));
	RC(zoo_set(bob, path, "his", 3, -1), ZNOAUTH);
	RC(zoo_get_children(bob, path, 0, &names), ZNOAUTH);
	RC(make(bob, join(path, "/child"), "", 0), ZNOAUTH);
	RC(zoo_set_acl(bob, path, -1, &ZOO_OPEN_ACL_UNSAFE), ZNOAUTH);

	struct ACL two[] = {{ZOO_PERM_READ, {"world", "anyone"}}, acl.data[0]};
	struct ACL_vector both = {2, two};
	OK(zoo_set_acl(alice, path, 0, &both));
	RC(zoo_set_acl(alice, path, 0, &both), ZBADVERSION);
	CHECK(holds(bob, path, "hers"));
	RC(zoo_set(bob, path, "his", 3, -1), ZNOAUTH);
	OK(zoo_get_acl(bob, path, &acl, &stat));
	CHECK(acl.count == 2 && !strcmp(acl.data[1].id.id, "alice:x") && stat.aversion == 1);
	OK(zoo_add_auth(bob, "digest", "alice:secret", 12, NULL, NULL));
	OK(zoo_set(bob, path, "his", 3, -1));

	struct ACL nobody[] = {{ZOO_PERM_ALL, {"digest", "nobody:x"}}};
	struct ACL_vector locked = {1, nobody};
	OK(zoo_set_acl(bob, path, -1, &locked));
	CHECK(!holds(bob, path, "his"));
	OK(zoo_add_auth(bob, "digest", "super:secret", 12, NULL, NULL));
	CHECK(holds(bob, path, "his"));

	struct ACL local[] = {{ZOO_PERM_ALL, {"ip", "127.0.0.1"}}};
	struct ACL_vector loopback = {1, local};
	OK(zoo_create(alice, join(path, "-ip"), "ip", 2, &loopback, 0, NULL, 0));
	CHECK(holds(alice, join(path, "-ip"), "ip"));
	OK(zookeeper_close(alice));
	OK(zookeeper_close(bob));
	return NULL;
}

static char *case_unknown_scheme(const char *path) {
	(void)path;
	zhandle_t *zh = connected(wire, LONG_SESSION);
	OK(zoo_add_auth(zh, "none such", "x", 1, NULL, NULL));
	CHECK(state(zh, ZOO_AUTH_FAILED_STATE));
	CHECK(is_unrecoverable(zh));
	zookeeper_close(zh);
	return NULL;
}

static char *case_config(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	char buffer[4096];
	int length = sizeof buffer;
	struct Stat stat;
	(void)path;
	OK(zoo_getconfig(zh, 0, buffer, &length, &stat));
	CHECK(length <= 0 && stat.ephemeralOwner == 0); /* standalone: no servers in it */
	length = sizeof buffer;
	RC(zoo_reconfig(zh, "server.2=127.0.0.1:1:2;3", NULL, NULL, -1, buffer, &length, &stat), ZRECONFIGDISABLED);
	OK(zookeeper_close(zh));
	return NULL;
}

/* Watches see what changes after the connection was cut, and what changed while
   it was: the client sets them again with the last zxid that it has seen. */
static char *case_watches_over_cut(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION), *other = connected(direct, LONG_SESSION);
	struct tape *data = new_tape(), *children = new_tape(), *exist = new_tape();
	struct String_vector names;
	struct Stat stat;
	char buffer[10];
	int length = sizeof buffer;
	int64_t session = zoo_client_id(zh)->client_id;
	char *own = join(path, "/own"), *later = join(path, "/later");
	CHECK(zoo_recv_timeout(zh) == LONG_SESSION);
	OK(make(zh, path, "old", 0));
	OK(zoo_add_auth(zh, "digest", "alice:secret", 12, NULL, NULL));
	OK(zoo_create(zh, own, "hers", 4, &ZOO_CREATOR_ALL_ACL, ZOO_EPHEMERAL, NULL, 0));

	for (int round = 0; round < 2; round++) {
		bool missed = round == 1;
		OK(zoo_wget(zh, path, on_event, data, buffer, &length, NULL));
		OK(zoo_wget_children(zh, path, on_event, children, &names));
		RC(zoo_wexists(zh, later, on_event, exist, NULL), ZNONODE);
		ask("block");
		CHECK(state(zh, ZOO_CONNECTING_STATE));
		if (!missed) {
			ask("open");
			CHECK(state(zh, ZOO_CONNECTED_STATE));
			OK(zoo_exists(zh, path, 0, NULL)); /* the watches are set again before this */
		}
		OK(zoo_set(other, path, "new", 3, -1));
		OK(make(other, later, "", 0));
		if (missed)
			ask("open");
		CHECK(event(data, round, ZOO_CHANGED_EVENT, ZOO_CONNECTED_STATE, path));
		CHECK(event(children, round, ZOO_CHILD_EVENT, ZOO_CONNECTED_STATE, path));
		CHECK(event(exist, round, ZOO_CREATED_EVENT, ZOO_CONNECTED_STATE, later));
		CHECK(holds(zh, own, "hers")); /* it has proven itself again */
		OK(zoo_exists(zh, own, 0, &stat));
		CHECK(stat.ephemeralOwner == session && zoo_client_id(zh)->client_id == session);
		OK(zoo_delete(other, later, -1));
		OK(zoo_exists(zh, path, 0, NULL));
	}
	CHECK(told(data) == 2 && told(children) == 2 && told(exist) == 2);
	OK(zookeeper_close(zh));
	CHECK(gone(other, own));
	OK(zookeeper_close(other));
	return NULL;
}

/* Both clients live through a restart: their sessions and the ephemeral are
   there, and so are the watches. */
static char *case_watches_over_restart(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION), *other = connected(direct, LONG_SESSION);
	struct tape *data = new_tape();
	struct Stat stat;
	char buffer[10];
	int length = sizeof buffer;
	int64_t session = zoo_client_id(zh)->client_id;
	OK(make(zh, path, "", ZOO_EPHEMERAL));
	for (int round = 0; round < 2; round++) {
		OK(zoo_wget(zh, path, on_event, data, buffer, &length, NULL));
		ask("stop");
		CHECK(state(zh, ZOO_CONNECTING_STATE) && state(other, ZOO_CONNECTING_STATE));
		RC(zoo_exists(other, path, 0, NULL), ZCONNECTIONLOSS);
		ask("start");
		CHECK(state(zh, ZOO_CONNECTED_STATE) && state(other, ZOO_CONNECTED_STATE));
		OK(zoo_set(other, path, "x", 1, round));
		CHECK(event(data, round, ZOO_CHANGED_EVENT, ZOO_CONNECTED_STATE, path));
		OK(zoo_exists(other, path, 0, &stat));
		CHECK(stat.ephemeralOwner == session && zoo_client_id(zh)->client_id == session);
	}
	OK(zookeeper_close(zh));
	OK(zookeeper_close(other));
	return NULL;
}

static char *case_session_resumed(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION), *other = connected(direct, LONG_SESSION);
	clientid_t session = *zoo_client_id(zh);
	OK(make(zh, path, "", ZOO_EPHEMERAL));
	ask("block");
	CHECK(state(zh, ZOO_CONNECTING_STATE));
	zookeeper_close(zh); /* cannot tell the server, so the session lives */
	ask("open");
	OK(zoo_exists(other, path, 0, NULL));
	zh = handle(direct, LONG_SESSION, &session);
	CHECK(state(zh, ZOO_CONNECTED_STATE));
	CHECK(!memcmp(zoo_client_id(zh), &session, sizeof session));
	OK(zookeeper_close(zh));
	CHECK(gone(other, path));
	zh = handle(direct, LONG_SESSION, &session); /* a closed session is over */
	CHECK(state(zh, ZOO_EXPIRED_SESSION_STATE));
	zookeeper_close(zh);
	OK(zookeeper_close(other));
	return NULL;
}

static char *case_wrong_password(const char *path) {
	zhandle_t *zh = connected(wire, LONG_SESSION);
	clientid_t session = *zoo_client_id(zh);
	OK(make(zh, path, "", ZOO_EPHEMERAL));
	session.passwd[3] ^= 1;
	zhandle_t *thief = handle(direct, LONG_SESSION, &session);
	CHECK(state(thief, ZOO_EXPIRED_SESSION_STATE));
	zookeeper_close(thief);
	CHECK(state(zh, ZOO_CONNECTED_STATE));
	struct Stat stat;
	int rc = zoo_exists(zh, path, 0, &stat);
	if (rc == ZCONNECTIONLOSS) { /* ZooKeeper cuts the healthy connection */
		CHECK(state(zh, ZOO_CONNECTED_STATE));
		rc = zoo_exists(zh, path, 0, &stat);
	}
	OK(rc);
	CHECK(stat.ephemeralOwner == session.client_id);
	OK(zookeeper_close(zh));
	return NULL;
}

static char *case_session_expired(const char *path) {
	zhandle_t *zh = connected(wire, SHORT_SESSION), *other = connected(direct, LONG_SESSION);
	CHECK(zoo_recv_timeout(zh) == SHORT_SESSION);
	OK(make(zh, path, "", ZOO_EPHEMERAL));
	ask("block");
	CHECK(gone(other, path));
	CHECK(!is_unrecoverable(zh));
	ask("open");
	CHECK(state(zh, ZOO_EXPIRED_SESSION_STATE));
	CHECK(is_unrecoverable(zh) && zoo_state(zh) == ZOO_EXPIRED_SESSION_STATE);
	RC(zoo_exists(zh, path, 0, NULL), ZINVALIDSTATE);
	zookeeper_close(zh);
	OK(zookeeper_close(other));
	return NULL;
}

static char *case_several_hosts(const char *path) {
	zoo_deterministic_conn_order(1);
	zhandle_t *zh = connected(failure("127.0.0.1:1,%s,%s", wire, direct), LONG_SESSION);
	int64_t session = zoo_client_id(zh)->client_id;
	OK(make(zh, path, "", ZOO_EPHEMERAL));
	ask("block"); /* it goes on to the next, with its session */
	struct tape *session_events = (struct tape *)zoo_get_context(zh);
	CHECK(event(session_events, 1, ZOO_SESSION_EVENT, ZOO_CONNECTING_STATE, ""));
	CHECK(event(session_events, 2, ZOO_SESSION_EVENT, ZOO_CONNECTED_STATE, ""));
	struct Stat stat;
	OK(zoo_exists(zh, path, 0, &stat));
	CHECK(stat.ephemeralOwner == session && !strcmp(zoo_get_current_server(zh), direct));
	ask("open");
	OK(zookeeper_close(zh));
	return NULL;
}

/* The lock recipe. */

static int by_number(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* lock_dir takes the lock of dir; own gets the znode that releases it. */
static int lock_dir(zhandle_t *zh, const char *dir, char *own, int size) {
	int rc = zoo_create(zh, join(dir, "/n-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, own, size);
	while (rc == ZOK) {
		struct String_vector names;
		if ((rc = zoo_get_children(zh, dir, 0, &names)) != ZOK)
			break;
		qsort(names.data, names.count, sizeof *names.data, by_number);
		int at = 0;
		while (at < names.count && strcmp(names.data[at], strrchr(own, '/') + 1))
			at++;
		if (at == names.count)
			return ZNONODE;
		if (at == 0)
			return ZOK;
		struct tape *gone = new_tape();
		char *before = failure("%s/%s", dir, names.data[at - 1]);
		rc = zoo_wexists(zh, before, on_event, gone, NULL);
		if (rc == ZOK && !event(gone, 0, ZOO_DELETED_EVENT, ZOO_CONNECTED_STATE, before))
			return ZOPERATIONTIMEOUT;
		if (rc == ZNONODE)
			rc = ZOK;
	}
	return rc;
}

static const char *lock_path;
static int counter = -1; /* an open file with a number, which only the lock guards */

static void *add(void *context) {
	zhandle_t *zh = context;
	char own[200];
	int rc = ZOK;
	for (int i = 0; i < 20 && rc == ZOK; i++) {
		if ((rc = lock_dir(zh, lock_path, own, sizeof own)) != ZOK)
			break;
		int n = -1;
		if (pread(counter, &n, sizeof n, 0) != sizeof n)
			return "pread";
		sched_yield();
		n++;
		if (pwrite(counter, &n, sizeof n, 0) != sizeof n)
			return "pwrite";
		rc = zoo_delete(zh, own, -1);
	}
	return rc == ZOK ? NULL : (void *)zerror(rc);
}

/* adders adds with four threads on two connections. */
static const char *adders(void) {
	zhandle_t *zh[2] = {connected(wire, LONG_SESSION), connected(direct, LONG_SESSION)};
	pthread_t threads[4];
	void *wrong = NULL;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, add, zh[i % 2]);
	for (int i = 0; i < 4; i++) {
		void *why;
		pthread_join(threads[i], &why);
		wrong = wrong ? wrong : why;
	}
	zookeeper_close(zh[0]);
	zookeeper_close(zh[1]);
	return wrong;
}

extern char **environ;

static char *case_lock_processes(const char *path) {
	zhandle_t *zh = connected(direct, LONG_SESSION);
	char file[] = "/tmp/lockkeeper-interop-XXXXXX";
	int zero = 0;
	lock_path = path;
	OK(make(zh, path, "", 0));
	CHECK((counter = mkstemp(file)) >= 0);
	CHECK(pwrite(counter, &zero, sizeof zero, 0) == sizeof zero);
	pid_t others[2];
	char *args[] = {"program", (char *)wire, (char *)direct, (char *)path, file, NULL};
	for (int i = 0; i < 2; i++)
		CHECK(!posix_spawn(&others[i], "/proc/self/exe", NULL, NULL, args, environ));
	const char *wrong = adders();
	for (int i = 0; i < 2; i++) {
		int status;
		CHECK(waitpid(others[i], &status, 0) == others[i]);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	int n = 0;
	CHECK(pread(counter, &n, sizeof n, 0) == sizeof n);
	unlink(file);
	close(counter);
	if (wrong)
		return failure("a thread ended with: %s", wrong);
	if (n != 3 * 4 * 20)
		return failure("the counter is %d, not %d", n, 3 * 4 * 20);
	struct String_vector names;
	OK(zoo_get_children(zh, path, 0, &names));
	CHECK(names.count == 0);
	OK(zookeeper_close(zh));
	return NULL;
}

static void *take(void *context) {
	static char own[200];
	return lock_dir(context, lock_path, own, sizeof own) == ZOK ? own : NULL;
}

/* The holder's session expires, and the next in line gets the lock. */
static char *case_lock_of_expired_session(const char *path) {
	zhandle_t *zh = connected(wire, SHORT_SESSION), *other = connected(direct, LONG_SESSION);
	char own[200];
	pthread_t waiter;
	void *got;
	struct tape *queue = new_tape();
	struct String_vector names;
	lock_path = path;
	OK(make(other, path, "", 0));
	OK(lock_dir(zh, path, own, sizeof own));
	OK(zoo_wget_children(other, path, on_event, queue, &names));
	pthread_create(&waiter, NULL, take, other);
	CHECK(event(queue, 0, ZOO_CHILD_EVENT, ZOO_CONNECTED_STATE, path));
	ask("block");
	pthread_join(waiter, &got);
	ask("open");
	CHECK(got && strcmp(got, own) > 0);
	CHECK(state(zh, ZOO_EXPIRED_SESSION_STATE));
	zookeeper_close(zh);
	OK(zookeeper_close(other));
	return NULL;
}

#define CASE(name) {#name, case_##name}

static const struct {
	const char *name;
	char *(*run)(const char *path);
} cases[] = {
    CASE(create_modes),   CASE(data),          CASE(async_pipeline),  CASE(async_operations),    CASE(multi),
    CASE(failed_multi),   CASE(watches),       CASE(remove_watches),  CASE(acl_and_auth),        CASE(unknown_scheme),
    CASE(config),         CASE(lock_processes), CASE(watches_over_cut), CASE(watches_over_restart), CASE(session_resumed),
    CASE(wrong_password), CASE(session_expired), CASE(several_hosts), CASE(lock_of_expired_session),
};

int main(int argc, char **argv) {
	wire = argv[1];
	direct = argv[2];
	zoo_set_debug_level(0); /* it would tell of each attempt to connect */
	if (argc == 5) { /* a second process in case_lock_processes */
		lock_path = argv[3];
		if ((counter = open(argv[4], O_RDWR)) < 0)
			return 1;
		const char *wrong = adders();
		if (wrong)
			fprintf(stderr, "a thread ended with: %s\n", wrong);
		return wrong != NULL;
	}
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct timespec began, ended;
		clock_gettime(CLOCK_MONOTONIC, &began);
		char *why = cases[i].run(join("/c-", cases[i].name));
		clock_gettime(CLOCK_MONOTONIC, &ended);
		fprintf(stderr, "%s took %.2f s\n", cases[i].name, ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9);
		if (why) {
			printf("FAIL %s: %s\n", cases[i].name, why);
			ask("open");
		} else
			printf("ok %s\n", cases[i].name);
		fflush(stdout);
	}
	return 0;
}
