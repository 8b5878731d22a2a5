// Runs node-zookeeper-client and checks what it gets; clients_test.go says how.
'use strict'

const assert = require('node:assert/strict')
const childProcess = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const readline = require('node:readline')
const zookeeper = require('node-zookeeper-client')

const { ACL, CreateMode, Event, Exception, Id, Permission, State } = zookeeper
const FAR = 60_000 // ms; only decides when a case gives up
const LONG = 10_000 // as long as a restart may take on a busy machine
const SHORT = 3000 // of sessions that expire

const [wire, direct] = process.argv.slice(2, 4)
const clients = []

// A Session is a client whose methods give promises, and its states.
class Session {
  constructor(addr, sessionTimeout, options) {
    this.client = zookeeper.createClient(addr, { sessionTimeout, spinDelay: 20, ...options })
    this.states = new Tape()
    this.client.on('state', state => this.states.record(state.getName()))
    this.client.connect()
    clients.push(this.client)
    for (const name of ['create', 'remove', 'setData', 'setACL', 'getACL', 'mkdirp']) {
      this[name] = (...args) => call(this.client, name, args)
    }
    // The watcher goes before the callback, and may be missing.
    for (const name of ['getData', 'exists', 'getChildren']) {
      this[name] = (path, tape) => call(this.client, name, tape ? [path, event => tape.record(event)] : [path])
    }
  }

  get id() { return this.client.getSessionId().toString('hex') }

  close() { this.client.close() }
}

// call gives the callback's result, or all results if there are several.
function call(client, name, args) {
  return new Promise((resolve, reject) => {
    client[name](...args, (error, ...results) => error ? reject(error) : resolve(results.length > 1 ? results : results[0]))
  })
}

const commit = transaction => new Promise(resolve => transaction.commit((error, results) => resolve([error, results])))

async function connect(addr = wire, sessionTimeout = LONG, options = {}) {
  const session = new Session(addr, sessionTimeout, options)
  await session.states.until(1)
  assert.equal(session.states.last(), 'SYNC_CONNECTED')
  return session
}

// A Tape remembers what a callback was called with.
class Tape {
  got = []
  waiting = []

  record(value) {
    this.got.push(value)
    for (const wake of this.waiting.splice(0)) wake()
  }

  last() { return this.got.at(-1) }

  // until waits for count calls.
  async until(count) {
    const limit = setTimeout(() => { this.late = true; this.waiting.splice(0).forEach(wake => wake()) }, FAR)
    while (this.got.length < count && !this.late) await new Promise(wake => this.waiting.push(wake))
    clearTimeout(limit)
    assert.ok(this.got.length >= count, `${count} calls never came: ${this.got}`)
    return this.got[count - 1]
  }

  // event waits for call number count and compares the event.
  async event(count, type, path) {
    const event = await this.until(count)
    assert.deepEqual([event.getType(), event.getPath()], [type, path])
  }
}

async function fails(code, promise) {
  await assert.rejects(promise, error => {
    assert.equal(error.getCode && error.getCode(), code, String(error))
    return true
  })
}

const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

async function ask(what) {
  console.log('do ' + what)
  assert.equal((await input.next()).value, 'done')
}

const text = ([data]) => String(data)
const buffer = text => Buffer.from(text)

const cases = {
  async create_modes(p) {
    const zk = await connect()
    assert.equal(await zk.create(p), p)
    await fails(Exception.NODE_EXISTS, zk.create(p))
    await fails(Exception.NO_NODE, zk.create(p + '/none/child'))
    assert.equal(await zk.create(p + '/e', buffer('x'), CreateMode.EPHEMERAL), p + '/e')
    assert.equal((await zk.exists(p + '/e')).ephemeralOwner.toString('hex'), zk.id)
    await fails(Exception.NO_CHILDREN_FOR_EPHEMERALS, zk.create(p + '/e/child'))
    assert.equal(await zk.create(p + '/s-', CreateMode.PERSISTENT_SEQUENTIAL), p + '/s-0000000001')
    assert.equal(await zk.create(p + '/s-', CreateMode.EPHEMERAL_SEQUENTIAL), p + '/s-0000000002')
    await fails(Exception.NOT_EMPTY, zk.remove(p))
    await fails(Exception.BAD_VERSION, zk.remove(p + '/s-0000000001', 3))
    assert.equal(await zk.mkdirp(p + '/a/b/c'), p + '/a/b/c')
    assert.deepEqual((await zk.getChildren(p + '/a/b'))[0], ['c'])
    zk.close() // nobody tells when the server is done with it
    const other = await connect()
    const gone = new Tape()
    if (await other.exists(p + '/e', gone)) await gone.event(1, Event.NODE_DELETED, p + '/e')
    const [names, stat] = await other.getChildren(p)
    assert.deepEqual(names.sort(), ['a', 's-0000000001'])
    assert.deepEqual([stat.numChildren, stat.cversion], [2, 6])
    for (const name of ['/a/b/c', '/a/b', '/a', '/s-0000000001', '']) await other.remove(p + name)
    assert.equal(await other.exists(p), null)
  },

  async data(p) {
    const zk = await connect()
    await zk.create(p)
    assert.deepEqual((await zk.getData(p))[0], undefined) // no data at all
    const stat = await zk.setData(p, buffer('one'), -1)
    assert.deepEqual([stat.version, stat.dataLength], [1, 3])
    await fails(Exception.BAD_VERSION, zk.setData(p, buffer('two'), 7))
    assert.equal(text(await zk.getData(p)), 'one')
    await fails(Exception.NO_NODE, zk.getData(p + '/none'))
    await fails(Exception.NO_NODE, zk.getChildren(p + '/none'))
    assert.equal(await zk.exists(p + '/none'), null)
    await zk.create(p + '/ключ-鍵', buffer('wert ü'))
    assert.deepEqual((await zk.getChildren(p))[0], ['ключ-鍵'])
    const large = Buffer.alloc(1024 * 1024 - 200, 'lockkeeper')
    await zk.setData(p, large)
    assert.ok((await zk.getData(p))[0].equals(large))
    const inside = await connect(direct + p)
    await inside.create('/here', buffer('chroot'))
    assert.equal(text(await zk.getData(p + '/here')), 'chroot')
  },

  async pipeline(p) {
    const zk = await connect()
    await zk.create(p)
    const numbers = Array.from({ length: 1000 }, (_, i) => i)
    const made = numbers.map(i => zk.create(p + '/n-', buffer(String(i)), CreateMode.PERSISTENT_SEQUENTIAL))
    const names = numbers.map(i => p + '/n-' + String(i).padStart(10, '0'))
    const read = names.map(name => zk.getData(name))
    assert.deepEqual(await Promise.all(made), names)
    assert.deepEqual((await Promise.all(read)).map(text), numbers.map(String))
  },

  async watches(p) {
    const [zk, other] = [await connect(), await connect(direct)]
    const [exist, data, children] = [new Tape(), new Tape(), new Tape()]
    const child = p + '/child'
    assert.equal(await zk.exists(p, exist), null)
    await other.create(p)
    await exist.event(1, Event.NODE_CREATED, p)
    await zk.getData(p, data)
    await zk.getChildren(p, children)
    await other.setData(p, buffer('x'))
    await data.event(1, Event.NODE_DATA_CHANGED, p)
    await other.create(child)
    await children.event(1, Event.NODE_CHILDREN_CHANGED, p)
    await zk.getData(child, data)
    await zk.getChildren(child, children)
    await other.setACL(child, ACL.OPEN_ACL_UNSAFE) // tells nobody
    await other.remove(child)
    await data.event(2, Event.NODE_DELETED, child)
    await children.event(2, Event.NODE_DELETED, child)
    await other.setData(p, buffer('y')) // told once already
    assert.equal(text(await zk.getData(p)), 'y')
    assert.deepEqual([exist, data, children].map(tape => tape.got.length), [1, 2, 2])
  },

  async transaction(p) {
    const zk = await connect()
    await zk.create(p)
    const [error, results] = await commit(zk.client.transaction()
      .create(p + '/a', buffer('1'))
      .create(p + '/s-', CreateMode.EPHEMERAL_SEQUENTIAL)
      .setData(p, buffer('set'))
      .check(p, 1) // sees the change before it
      .remove(p + '/a'))
    assert.ok(!error, String(error))
    assert.deepEqual([results[0].path, results[1].path, results[2].stat.version], [p + '/a', p + '/s-0000000001', 1])
    assert.deepEqual((await zk.getChildren(p))[0], ['s-0000000001'])
    assert.equal(text(await zk.getData(p)), 'set')
  },

  async failed_transaction(p) {
    const zk = await connect()
    await zk.create(p, buffer('kept'))
    const [error, results] = await commit(zk.client.transaction()
      .create(p + '/a')
      .check(p, 9)
      .setData(p, buffer('lost'))
      .remove(p + '/none'))
    assert.equal(error.getCode(), Exception.BAD_VERSION)
    const second = Exception.RUNTIME_INCONSISTENCY
    assert.deepEqual(results.map(result => result.err), [0, Exception.BAD_VERSION, second, second])
    assert.deepEqual((await zk.getChildren(p))[0], [])
    assert.equal(text(await zk.getData(p)), 'kept')
  },

  async acl_and_auth(p) {
    const [alice, bob] = [await connect(), await connect()]
    await fails(Exception.INVALID_ACL, alice.create(p, ACL.CREATOR_ALL_ACL))
    alice.client.addAuthInfo('digest', buffer('alice:secret'))
    await alice.create(p, buffer('hers'), ACL.CREATOR_ALL_ACL)
    const [acl, stat] = await alice.getACL(p)
    assert.deepEqual([acl.length, acl[0].permission, acl[0].id.scheme, stat.aversion], [1, 31, 'digest', 0])
    assert.match(acl[0].id.id, /^alice:.+=$/)
    await fails(Exception.NO_AUTH, bob.getData(p))
    await fails(Exception.NO_AUTH, bob.setData(p, buffer('his')))
    await fails(Exception.NO_AUTH, bob.getChildren(p))
    await fails(Exception.NO_AUTH, bob.create(p + '/child'))
    await fails(Exception.NO_AUTH, bob.setACL(p, ACL.OPEN_ACL_UNSAFE))
    const both = [acl[0], new ACL(Permission.READ, Id.ANYONE_ID_UNSAFE)]
    assert.equal((await alice.setACL(p, both)).aversion, 1)
    await fails(Exception.BAD_VERSION, alice.setACL(p, both, 7))
    assert.equal(text(await bob.getData(p)), 'hers')
    assert.deepEqual((await bob.getACL(p))[0].map(acl => acl.id.id), ['alice:x', 'anyone'])
    await fails(Exception.NO_AUTH, bob.setData(p, buffer('his')))
    bob.client.addAuthInfo('digest', buffer('alice:secret'))
    await bob.setData(p, buffer('his'))
    await bob.setACL(p, [new ACL(Permission.ALL, new Id('digest', 'nobody:x'))])
    await fails(Exception.NO_AUTH, alice.getData(p))
    alice.client.addAuthInfo('digest', buffer('super:secret'))
    assert.equal(text(await alice.getData(p)), 'his')
  },

  async unknown_scheme() {
    const zk = await connect()
    zk.client.addAuthInfo('none such', buffer('x'))
    await zk.states.until(2)
    assert.equal(zk.states.got[1], 'AUTH_FAILED')
  },

  // Watches see what changes after the connection was cut, and what changed
  // while it was: the client sets them again.
  async watches_over_cut(p) {
    const [zk, other] = [await connect(), await connect(direct)]
    const [exist, data, children] = [new Tape(), new Tape(), new Tape()]
    const id = zk.id
    zk.client.addAuthInfo('digest', buffer('alice:secret'))
    await zk.create(p)
    await zk.create(p + '/own', buffer('hers'), ACL.CREATOR_ALL_ACL, CreateMode.EPHEMERAL)
    for (const missed of [false, true]) {
      const round = missed ? 2 : 1
      await zk.getData(p, data)
      await zk.getChildren(p, children)
      assert.equal(await zk.exists(p + '/later', exist), null)
      await ask('block')
      await zk.states.until(2 * round)
      if (!missed) {
        await ask('open')
        await zk.states.until(2 * round + 1)
        assert.equal(text(await zk.getData(p + '/own')), 'hers') // and so the watches are set
      }
      await other.setData(p, buffer('new'))
      await other.create(p + '/later')
      if (missed) await ask('open')
      await data.event(round, Event.NODE_DATA_CHANGED, p)
      await children.event(round, Event.NODE_CHILDREN_CHANGED, p)
      await exist.event(round, Event.NODE_CREATED, p + '/later')
      assert.equal(text(await zk.getData(p + '/own')), 'hers') // it has proven itself again
      assert.equal((await zk.exists(p + '/own')).ephemeralOwner.toString('hex'), id)
      await other.remove(p + '/later')
    }
    assert.equal(text(await zk.getData(p)), 'new')
    assert.deepEqual([exist, data, children].map(tape => tape.got.length), [2, 2, 2])
    assert.deepEqual(zk.states.got, ['SYNC_CONNECTED', ...Array(2).fill(['DISCONNECTED', 'SYNC_CONNECTED']).flat()])
  },

  async watches_over_restart(p) {
    const [zk, other] = [await connect(), await connect()]
    const data = new Tape()
    const id = zk.id
    await zk.create(p, CreateMode.EPHEMERAL)
    for (const round of [1, 2]) {
      await zk.getData(p, data)
      await ask('stop')
      await Promise.all([zk.states.until(2 * round), other.states.until(2 * round)])
      await ask('start')
      await Promise.all([zk.states.until(2 * round + 1), other.states.until(2 * round + 1)])
      await other.setData(p, buffer(String(round)))
      await data.event(round, Event.NODE_DATA_CHANGED, p)
      assert.equal((await other.exists(p)).ephemeralOwner.toString('hex'), id)
    }
    assert.equal(zk.id, id)
  },

  // The first program's connection is lost, and another goes on with its session.
  async session_resumed(p) {
    const [zk, other] = [await connect(), await connect(direct)]
    await zk.create(p, CreateMode.EPHEMERAL)
    await ask('block')
    await zk.states.until(2)
    const session = { sessionId: zk.client.getSessionId(), sessionPassword: zk.client.getSessionPassword() }
    const heir = await connect(direct, LONG, session)
    assert.equal(heir.id, zk.id)
    const gone = new Tape()
    await other.exists(p, gone)
    heir.close()
    await gone.event(1, Event.NODE_DELETED, p)
    await ask('open') // the closed session is over for the first one
    await zk.states.until(3)
    assert.equal(zk.states.got[2], 'EXPIRED')
  },

  async wrong_password(p) {
    const zk = await connect()
    await zk.create(p, CreateMode.EPHEMERAL)
    const thief = new Session(direct, LONG, { sessionId: zk.client.getSessionId(), sessionPassword: Buffer.alloc(16, 'p') })
    assert.equal(await thief.states.until(1), 'EXPIRED')
    assert.equal((await (await connect()).exists(p)).ephemeralOwner.toString('hex'), zk.id)
  },

  async session_expired(p) {
    const [zk, other] = [await connect(wire, SHORT), await connect(direct)]
    assert.equal(zk.client.getSessionTimeout(), SHORT)
    await zk.create(p, CreateMode.EPHEMERAL)
    const gone = new Tape()
    await other.exists(p, gone)
    await ask('block')
    await gone.event(1, Event.NODE_DELETED, p)
    await ask('open')
    await zk.states.until(3)
    assert.deepEqual(zk.states.got.slice(0, 3), ['SYNC_CONNECTED', 'DISCONNECTED', 'EXPIRED'])
  },

  async lock_processes(p) {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'lockkeeper-interop-'))
    const file = path.join(dir, 'counter')
    fs.writeFileSync(file, '0')
    await (await connect()).create(p)
    const args = [__filename, wire, direct, p, file]
    const others = [1, 2].map(() => childProcess.spawn(process.execPath, args, { stdio: ['ignore', 'inherit', 'inherit'] }))
    const ends = others.map(other => new Promise(resolve => other.on('close', resolve)))
    await add(p, file)
    assert.deepEqual(await Promise.all(ends), [0, 0])
    assert.equal(fs.readFileSync(file, 'utf8'), String(3 * 3 * 20))
    fs.rmSync(dir, { recursive: true })
    assert.deepEqual((await (await connect()).getChildren(p))[0], [])
  },

  // The holder's session expires, and the next in line gets the lock.
  async lock_of_expired_session(p) {
    const [zk, other] = [await connect(wire, SHORT), await connect(direct)]
    await other.create(p)
    const held = await lock(zk, p)
    const line = new Tape()
    await other.getChildren(p, line)
    const next = lock(other, p)
    await line.event(1, Event.NODE_CHILDREN_CHANGED, p)
    await ask('block')
    assert.ok(await next > held)
    await ask('open')
  },
}

// lock takes the lock of dir; deleting the znode that it gives releases it.
async function lock(zk, dir) {
  const own = await zk.create(dir + '/n-', CreateMode.EPHEMERAL_SEQUENTIAL)
  for (;;) {
    const [names] = await zk.getChildren(dir)
    const at = names.sort().indexOf(path.basename(own))
    assert.ok(at >= 0, own + ' is gone')
    if (at === 0) return own
    const gone = new Tape()
    if (await zk.exists(dir + '/' + names[at - 1], gone)) await gone.until(1)
  }
}

// add adds to the number in a file from several connections: only the lock
// keeps them apart.
async function add(dir, file) {
  await Promise.all([wire, direct, direct].map(async addr => {
    const zk = await connect(addr)
    for (let i = 0; i < 20; i++) {
      const own = await lock(zk, dir)
      const n = Number(fs.readFileSync(file, 'utf8'))
      await new Promise(setImmediate)
      fs.writeFileSync(file, String(n + 1))
      await zk.remove(own)
    }
    zk.close()
  }))
}

async function main() {
  if (process.argv.length > 4) { // another process of lock_processes
    await add(...process.argv.slice(4))
    return
  }
  for (const [name, run] of Object.entries(cases)) {
    const began = Date.now()
    try {
      await run('/node-' + name)
      console.log('ok ' + name)
    } catch (error) {
      console.error(error)
      console.log(`FAIL ${name}: ${String(error).replaceAll(/\s+/g, ' ')}`)
      await ask('open')
    }
    console.error(`${name} took ${Date.now() - began} ms`)
    for (const client of clients.splice(0)) client.close()
  }
}

main().then(() => process.exit(0), error => {
  console.error(error)
  process.exit(1)
})
