'use strict'

const { inspect } = require('node:util')
const { sessionID, token, open, connecting, close } = require('./lib/clients.js')
const { LockkeeperError, LockkeeperTimeoutError, send, query } = require('./lib/control.js')
const { Running, binary, withDefaults } = require('./lib/process.js')

// disposable lets "await using" call a method, where the language has it.
function disposable(type, method) {
  if (Symbol.asyncDispose) type.prototype[Symbol.asyncDispose] = type.prototype[method]
}

// begin makes a Lockkeeper, that was made without a server, one that controls a server.
const begin = Symbol('begin')
// dead is whether a Lockkeeper that has begun was stopped, or its process has ended by itself.
const dead = Symbol('dead')
// failure ends a guard, and returns what was wrong with the lock, if anything.
const failure = Symbol('failure')
const dispose = Symbol('dispose')

const SHOWN = 20 // requests

// silence says why a server does not answer: how its process has ended, if that is known.
async function silence({ url, process, output }, error) {
  const end = await process?.fate() ?? (error.code === 'ECONNREFUSED' ? `the server at ${url} has ended` : undefined)
  if (!end) return `${error.message}\n${output ?? ''}`.trimEnd()
  return `${end}\n${output ?? ''}`.trimEnd()
}

// wrong says what is wrong with a fault; body is what it was made of.
function wrong(body, what) {
  return `the test fails, since its fault ${inspect(body, { breakLength: Infinity })} ${what}. If it need not meet a request, add optional: true`
}

const unmet = (body, { matched }) => wrong(body, `has had no effect (requests that it matched: ${matched})`)

// Lockkeeper is a ZooKeeper for tests, or a cluster of them. index.d.ts describes its methods.
class Lockkeeper {
  #server // {url, connectString, output, process, stop}; undefined before it has begun, and without process if another one has started it
  #clients = new Set()
  #clustered = false
  #stopped
  #guards = new Set() // whose verdict nobody has asked for
  #faults = new Map() // those that are not removed: what they were made of
  #unmet = [] // what was wrong with faults that were disposed of
  #waits = new Set() // {endpoint, body} of waits that have not ended

  static async start(options = {}) {
    const zk = new Lockkeeper()
    zk[begin](await Running.start(options), options)
    return zk
  }

  static async attach(url) {
    const zk = new Lockkeeper()
    const { connect, members } = await send('GET', url, '/state')
    zk[begin]({ url, connectString: connect, stop: () => {} }, { cluster: members[0].role === 'standalone' ? undefined : members.length })
    return zk
  }

  [begin](server, options) {
    this.#server = server instanceof Lockkeeper ? server.#running : server
    this.#clustered = options.cluster !== undefined
    this.#stopped = undefined
  }

  get [dead]() { return this.#stopped !== undefined || this.#server?.process?.ended !== undefined }

  get #running() {
    if (!this.#server) throw new Error('lockkeeper: this server has not been started yet; it exists in tests and hooks only')
    return this.#server
  }

  get url() { return this.#running.url }
  get connectString() { return this.#running.connectString }
  get output() { return this.#running.output ?? '' }
  get pid() { return this.#running.process?.pid }

  async stop() {
    if (!this.#server) return // its start has failed
    this.#stopped ??= (async () => {
      await this.closeClients()
      await this.#running.stop()
    })()
    return this.#stopped
  }

  async #send(method, endpoint, body) {
    const server = this.#running
    try {
      return await send(method, server.url, endpoint, body)
    } catch (error) {
      if (error instanceof LockkeeperError) {
        Error.captureStackTrace?.(error) // with the test's lines, which wait here
        throw error
      }
      if (this.#stopped) throw new Error(`lockkeeper: ${endpoint}: the server was stopped`)
      throw new Error(`lockkeeper: ${endpoint}: ${await silence(server, error)}`, { cause: error })
    }
  }

  get(endpoint, parameters = {}) { return this.#send('GET', endpoint + query(parameters)) }

  async post(endpoint, body = {}) {
    if (!endpoint.startsWith('/wait/')) return this.#send('POST', endpoint, body)
    const wait = { endpoint, body }
    this.#waits.add(wait)
    try {
      return await this.#send('POST', endpoint, body)
    } finally {
      this.#waits.delete(wait)
    }
  }

  async #do(endpoint, body) { await this.post(endpoint, body) }

  // Clients

  async connect(library, options) {
    const { connectString, process } = this.#running
    if (this.#stopped) throw new Error('lockkeeper: connect: the server was stopped')
    const { client, session } = open(library, connectString, options)
    this.#clients.add(client)
    process?.gone.then(async () => { if (connecting(client)) close(client, await process.fate()) })
    try {
      await session
    } catch (error) {
      this.#clients.delete(client)
      throw error
    }
    return client
  }

  async closeClients() {
    const all = [...this.#clients]
    this.#clients.clear()
    await Promise.all(all.map(client => close(client)))
  }

  // What there is

  state(options = {}) { return this.get('/state', options) }

  async leader(options = {}) { return (await this.post('/wait/leader', options)).leader }

  async znode(path, options = {}) {
    const { data, stat } = await this.get('/znode', { path, ...options })
    return { data: Buffer.from(data, 'base64'), stat }
  }

  async requests(op, options = {}) { return (await this.get('/requests', { op, ...options })).requests }

  // Sessions

  expire(session) { return this.#do('/expire', { session: sessionID(session) }) }
  disconnect(session) { return this.#do('/disconnect', { session: sessionID(session) }) }

  // Faults

  async inject({ optional = false, ...body }) {
    if (body.session !== undefined) body.session = sessionID(body.session)
    const { id } = await this.post('/inject', body)
    if (!optional) this.#faults.set(id, body)
    return new Fault(this, id, (state, disposed) => disposed ? this.#ended(state) : this.#faults.delete(id))
  }

  // #ended notes the state of a fault that something else than remove has ended.
  #ended(state) {
    const body = this.#faults.get(state.id)
    if (this.#faults.delete(state.id) && !state.fired) this.#unmet.push(unmet(body, state))
  }

  kill(member) { return this.#do('/kill', { member }) }
  restart(member) { return this.#do('/restart', { member }) }
  pause(member) { return this.#do('/pause', { member }) }
  resume(member) { return this.#do('/resume', { member }) }
  partition(...groups) { return this.#do('/partition', { groups }) }
  heal() { return this.#do('/heal') }
  link(from, to, fault = {}) { return this.#do('/link', { from, to, ...fault }) }
  disk(fault = {}) { return this.#do('/disk', fault) }
  clock(clock) { return this.#do('/clock', clock) }
  async stepDown() { return (await this.post('/step-down')).leader }

  // Waiting

  waitHeld(path, session, options) { return this.#do('/wait/held', { path, session: sessionID(session), ...options }) }
  waitWaiters(path, waiters, options) { return this.#do('/wait/waiters', { path, waiters, ...options }) }
  waitGone(path, options) { return this.#do('/wait/gone', { path, ...options }) }
  waitExists(path, options) { return this.#do('/wait/exists', { path, ...options }) }
  waitChildren(path, children, options) { return this.#do('/wait/children', { path, children, ...options }) }

  waitData(path, data, options) {
    const wanted = typeof data === 'string' ? { text: data } : { data: Buffer.from(data).toString('base64') }
    return this.#do('/wait/data', { path, ...wanted, ...options })
  }

  waitRequests(op, count, options) { return this.#do('/wait/requests', { op, count, ...options }) }

  waitWatch(path, { session, ...options } = {}) {
    return this.#do('/wait/watch', { path, ...session === undefined ? {} : { session: sessionID(session) }, ...options })
  }

  // Time

  async advance(ms, options) { return this.post('/advance', { ms, ...options }) }
  async endTTLs() { return (await this.post('/end-ttls')).deleted }

  // State

  async snapshot() { return (await this.post('/snapshot')).snapshot }
  async restore(snapshot = 0) {
    const { faults } = await this.post('/restore', { snapshot })
    for (const fault of faults) this.#ended(fault)
  }

  removeSnapshot(snapshot) { return this.#do('/snapshot/remove', { snapshot }) }
  addTree(tree) { return this.#do('/tree', { tree }) }

  async reset() {
    if (!this.#server || this.#stopped) return // its start has failed, or the test has stopped it
    this.#waits.clear() // of the test before
    await this.closeClients()
    const { members } = await this.state()
    for (const { member, role } of members) {
      await this.disk({ member })
      await this.clock({ member, skewMs: 0 })
      if (role === 'failed') await this.kill(member)
      if (role === 'failed' || role === 'stopped') await this.restart(member)
      else await this.resume(member)
    }
    if (this.#clustered) await this.heal()
    await this.restore()
  }

  // Servers and namespaces

  async newServer(options = {}) {
    const { url, connect } = await this.post('/servers', withDefaults(options))
    const zk = new Lockkeeper()
    const { process } = this.#running
    const stop = () => send('POST', url, '/stop', {}).catch(async error => {
      throw new Error(`lockkeeper: /stop: ${error instanceof LockkeeperError ? error.message : await silence({ url, process }, error)}`)
    })
    zk[begin]({ url, connectString: connect, process, stop }, options)
    return zk
  }

  async servers() { return (await this.get('/servers')).servers }

  async namespace(name) {
    const { path, connect } = await this.post('/namespace', { name })
    return new Namespace(this, path, connect)
  }

  // Locks

  async guard(path) {
    const { guard: id } = await this.post('/guard', { path })
    const guard = new Guard(this, id, path, () => this.#guards.delete(guard))
    this.#guards.add(guard)
    return guard
  }

  // A test's end

  async check() {
    const problems = [...await this.#waiting(), ...this.#unmet.splice(0)]
    this.#waits.clear()
    const guards = [...this.#guards]
    const faults = [...this.#faults]
    this.#guards.clear()
    this.#faults.clear()
    for (const guard of guards) {
      problems.push(await guard[failure]().catch(error => `the test fails, since its lock ${guard.path} cannot be judged: ${error.message}`))
    }
    if (faults.length) {
      const seen = await this.state().catch(error => ({ faults: [], why: error.message }))
      for (const [id, body] of faults) {
        const fault = seen.faults.find(fault => fault.id === id)
        if (!fault) problems.push(wrong(body, `cannot be judged: ${seen.why ?? 'the server no longer knows it'}`))
        else if (!fault.fired) problems.push(unmet(body, fault))
      }
    }
    const all = problems.filter(Boolean)
    if (all.length) throw new Error(`lockkeeper: ${all.join('\n')}`)
  }

  // #waiting returns a line for each wait that has not ended: why.
  async #waiting() {
    return Promise.all([...this.#waits].map(async ({ endpoint, body }) => {
      const why = await this.#send('POST', endpoint, { ...body, timeoutMs: 1 }).then(() => `${endpoint}: it has happened meanwhile`, error => error.message.replace(/ \(waited \S+\)$/, ''))
      return `when the test ended, it still waited: ${why}`
    }))
  }

  async report() {
    if (this.#stopped || !this.#server) return 'lockkeeper: the server does not run'
    const [waits, { tree }, requests] = await Promise.all([this.#waiting(), this.state(), this.requests()])
    const last = requests.slice(-SHOWN)
    return [
      ...waits.map(line => `lockkeeper: ${line}`),
      'lockkeeper: the znodes:', tree.trimEnd() || 'none',
      `lockkeeper: the last ${last.length} of ${requests.length} requests:`,
      ...last.map(({ time, session, text }) => `${time} ${session ?? '-'} ${text}`),
    ].join('\n')
  }
}
disposable(Lockkeeper, 'stop')

class Fault {
  #zk
  #removed

  constructor(zk, id, removed) {
    this.#zk = zk
    this.id = id
    this.#removed = removed
  }

  async waitFired(options) { await this.#zk.post('/wait/fired', { id: this.id, ...options }) }
  async remove() { return this.#remove(false) }
  async [dispose]() { await this.#remove(true) }

  async #remove(disposed) {
    const state = await this.#zk.post('/remove', { id: this.id })
    this.#removed(state, disposed)
    return state.fired
  }
}
disposable(Fault, dispose)

class Namespace {
  #zk

  constructor(zk, path, connectString) {
    this.#zk = zk
    this.path = path
    this.connectString = connectString
  }

  async remove() { await this.#zk.post('/namespace/remove', { path: this.path }) }
}
disposable(Namespace, 'remove')

class Guard {
  #zk
  #id
  #judged

  constructor(zk, id, path, judged) {
    this.#zk = zk
    this.#id = id
    this.path = path
    this.#judged = judged
  }

  async write(of, options) { return this.#zk.post('/guard/write', { guard: this.#id, token: token(of), ...options }) }

  async verdict() {
    this.#judged()
    return this.#zk.post('/guard/verdict', { guard: this.#id })
  }

  async assertOk() {
    const problem = await this[failure]()
    if (problem) throw new Error(problem)
  }

  async [failure]() {
    const { ok, violations, timeline } = await this.verdict()
    return ok ? undefined : `the lock ${this.path} failed:\n${violations.join('\n')}\n${timeline}`
  }
}

module.exports = { Lockkeeper, LockkeeperError, LockkeeperTimeoutError, sessionOf: sessionID, tokenOf: token, binary }
Object.defineProperties(module.exports, { begin: { value: begin }, dead: { value: dead } }) // for the files beside this one
