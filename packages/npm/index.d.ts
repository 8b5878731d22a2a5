/// <reference lib="esnext.disposable" />

/**
 * A session: its id as a string ("0x1000a01c3e20000") or a bigint, the eight bytes of
 * node-zookeeper-client, or a connected client of node-zookeeper-client or zookeeper.
 */
export type Session = string | bigint | Uint8Array | { getSessionId(): Uint8Array } | { readonly client_id: string | number }

/** A fencing token, the czxid of the holder's znode: as a number, a bigint, eight bytes, or in a Stat of a client. */
export type Token = number | bigint | Uint8Array | { readonly czxid: number | bigint | Uint8Array }

/** The id of a session as test control writes it: 0x and hexadecimal digits. */
export function sessionOf(session: Session): string

/** A fencing token as a number. */
export function tokenOf(token: Token): number

/** The path of the program for this platform. The environment variable LOCKKEEPER_BINARY overrides it. */
export function binary(): string

/** A refusal by the server; its status is explained in docs/test-control.md. */
export class LockkeeperError extends Error {
  readonly endpoint: string
  readonly status: number
}

/** What a test waited for has not happened in time. */
export class LockkeeperTimeoutError extends LockkeeperError {
  readonly name: 'TimeoutError'
}

/** What a server in a process with others can have. */
export interface ServerOptions {
  /** As many members, 1 to 9. Without it there is one server that is no cluster. */
  cluster?: number
  /** The znodes to begin with, a line for each: /path = "data". */
  tree?: string
  /** How long the leader of a cluster may be silent before the others elect a new one; 500 by default. */
  electionTimeoutMs?: number
  /** Answer as an older release line of ZooKeeper: 3.4 to 3.9, which is the default. */
  behaveAs?: string
}

export interface StartOptions extends ServerOptions {
  /** What the server logs: error by default, or warn, info, debug. */
  logLevel?: string
  /** More flags of `lockkeeper serve`. */
  args?: readonly string[]
  /** The path of another program. */
  binary?: string
  /** The port for clients, by default a free one. The members of a cluster have it and those that follow. */
  port?: number
}

/** One member of a cluster. It may be left out if there is only one. */
export interface OfMember {
  member?: number
}

export interface Wait extends OfMember {
  /** When to give up. */
  timeoutMs?: number
}

export interface State {
  connect: string
  members: { member: number, address: string, role: 'leader' | 'follower' | 'observer' | 'standalone' | 'looking' | 'stopped' | 'failed' | (string & {}) }[]
  /** The member whose state this is: the leader, if not chosen. */
  shown: number
  /** The znodes as text. */
  tree: string
  sessions: { id: string, timeoutMs: number, connected: boolean, ephemerals: string[] }[]
  watches: { session: string, path: string }[]
  locks: { path: string, holder: string, token: number, since: string, queue: string[] }[]
  faults: { id: number, fired: boolean, matched: number, text: string }[]
}

export interface Stat {
  czxid: number
  mzxid: number
  ctime: number
  mtime: number
  version: number
  cversion: number
  aversion: number
  /** null if the znode is not ephemeral */
  ephemeralOwner: string | null
  dataLength: number
  numChildren: number
  pzxid: number
}

export interface Request {
  time: string
  session: string | null
  op: string
  path: string
  text: string
}

/** Which requests a fault hits. */
export interface Hits extends OfMember {
  /** ZooKeeper's name of an operation, or a pattern such as "create*"; "connect" is the handshake, "event" a watch event. */
  op?: string
  /** A path, or a pattern in which * does not match a slash. */
  path?: string
  session?: Session
  /** The first matching request that is hit, counted from 1. */
  nth?: number
  /** How many are hit; -1 means all. */
  times?: number
}

/** What happens to requests, and to which. */
export type FaultOptions = Hits & { /** check() accepts it if no request has met the fault. */ optional?: boolean } & (
  | { do: 'delay' | 'trickle', ms: number }
  | { do: 'answer', error: string | number }
  | { do: 'hold' | 'drop' | 'dropReply' | 'closeBefore' | 'closeAfter' }
  | { do: 'refuse', op: 'connect' }
)

export interface Fault extends AsyncDisposable {
  readonly id: number
  /** Waits until the fault takes effect for the first time. */
  waitFired(options?: { timeoutMs?: number }): Promise<void>
  /** Ends the fault, releases what waits because of it, and returns whether it has taken effect. check() leaves it to you. */
  remove(): Promise<boolean>
}

/** A znode that a client sees as its root. */
export interface Namespace extends AsyncDisposable {
  readonly path: string
  /** For clients: all their paths are below the znode. */
  readonly connectString: string
  /** Deletes the znode and all that is in it. */
  remove(): Promise<void>
}

/** Judges one lock. */
export interface Guard {
  /** The znode whose children are the lock's queue. */
  readonly path: string
  /** Reports that a holder writes to what the lock protects. */
  write(token: Token, options?: {
    /** What is written to, if the lock protects several things. */
    resource?: string
    /** The resource accepts any token. */
    unchecked?: boolean
  }): Promise<{ accepted: true } | { accepted: false, reason: string }>
  /** Ends the guard, and tells what was wrong with the lock. */
  verdict(): Promise<{ ok: boolean, violations: string[], timeline: string }>
  /** Ends the guard, and fails with the violations and a timeline if there are any. */
  assertOk(): Promise<void>
}

/** The part of node-zookeeper-client, or of zookeeper, that connect uses. */
export type ClientLibrary<C> = { createClient(connectString: string, options?: any): C } | (new (config: any) => C)

/** A ZooKeeper for tests, or a cluster of them. */
export class Lockkeeper implements AsyncDisposable {
  private constructor()

  /**
   * Starts a server, or a cluster, in a process of its own, which ends when it is stopped, and in any
   * case when this process ends. A start that fails says what the program has printed.
   */
  static start(options?: StartOptions): Promise<Lockkeeper>
  /** Controls a server that somebody else has started with --test-control, and does not stop it. */
  static attach(url: string): Promise<Lockkeeper>

  /** The addresses of all members, for a client. */
  readonly connectString: string
  /** Where test control is. */
  readonly url: string
  /** What the program has printed on standard error. */
  readonly output: string
  /** The id of the process, if this process started it. */
  readonly pid: number | undefined

  /** Closes the clients of connect, and stops the server. */
  stop(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>

  /**
   * Connects a client of node-zookeeper-client or zookeeper, and returns it when it has a session. The
   * options are those of createClient, or of the config. It is closed by stop, reset and closeClients.
   * It fails after 60 s without a session, or when the process of the server has ended.
   */
  connect<C>(library: ClientLibrary<C>, options?: object): Promise<C>
  /** Closes all clients of connect. A call of connect that has not returned yet fails. */
  closeClients(): Promise<void>

  /** Who leads, the znodes as text, sessions, watches, locks, and faults. */
  state(options?: OfMember): Promise<State>
  /**
   * Waits until a member leads, or one of some, such as the others when a partition has cut the leader off; returns which.
   * The only server leads.
   */
  leader(options?: { among?: readonly number[], timeoutMs?: number }): Promise<number>
  znode(path: string, options?: OfMember): Promise<{ data: Uint8Array, stat: Stat }>
  /** The requests that clients have sent, the oldest first, without pings. */
  requests(op?: string, options?: OfMember): Promise<Request[]>

  /** Ends a session as if its client had been silent for its timeout. */
  expire(session: Session): Promise<void>
  /** Closes the connection of a session. */
  disconnect(session: Session): Promise<void>

  /** Lets something happen to requests of clients. */
  inject(fault: FaultOptions): Promise<Fault>
  /** Stops a member as abruptly as if its process had been killed. It keeps its state. */
  kill(member?: number): Promise<void>
  /** Starts a member that was killed. */
  restart(member?: number): Promise<void>
  /** Keeps a member from sending, receiving and writing to its disk. */
  pause(member?: number): Promise<void>
  resume(member?: number): Promise<void>
  /** Cuts the network so that only members of the same group reach each other. Clients reach all. */
  partition(...groups: number[][]): Promise<void>
  /** Ends all partitions and faults of links. */
  heal(): Promise<void>
  /** Sets the faults of the network from one member to another. Those that are left out end. */
  link(from: number, to: number, fault?: { cut?: boolean, delayMs?: number, loss?: number }): Promise<void>
  /** Makes each write to a member's disk slow, or fail. What is left out ends. */
  disk(fault?: OfMember & { delayMs?: number, full?: boolean }): Promise<void>
  /** Makes a member's clock wrong. */
  clock(clock: OfMember & { skewMs: number }): Promise<void>
  /** Makes the leader hand over, and returns the new one. */
  stepDown(): Promise<number>

  /** Waits until a session holds a lock. */
  waitHeld(path: string, session: Session, options?: Wait): Promise<void>
  /** Waits until this many sessions wait behind the holder of a lock. */
  waitWaiters(path: string, waiters: number, options?: Wait): Promise<void>
  waitGone(path: string, options?: Wait): Promise<void>
  waitExists(path: string, options?: Wait): Promise<void>
  waitChildren(path: string, children: number, options?: Wait): Promise<void>
  waitData(path: string, data: string | Uint8Array, options?: Wait): Promise<void>
  /** Waits until at least this many requests have been seen since the start. */
  waitRequests(op: string, count: number, options?: Wait & { path?: string }): Promise<void>
  /** Waits until somebody watches a znode. */
  waitWatch(path: string, options?: Wait & { session?: Session }): Promise<void>

  /** Lets the server's clock go forward: what runs out meanwhile ends before this returns. */
  advance(ms: number, options?: { connected?: boolean }): Promise<{ expired: string[], deleted: string[] }>
  /** Deletes TTL znodes without children, and empty containers, now. */
  endTTLs(): Promise<string[]>

  /** Remembers the state, for restore. */
  snapshot(): Promise<number>
  /** Puts back a state; without a number that with which the server began. */
  restore(snapshot?: number): Promise<void>
  /** Forgets a state that snapshot has remembered, and frees its memory. */
  removeSnapshot(snapshot: number): Promise<void>
  /** Adds the znodes of a text, such as '/a = "x"\n'. Those that exist get this data. */
  addTree(tree: string): Promise<void>
  /** For between two tests: closes the clients of connect, ends all faults, and restores the state of the beginning. */
  reset(): Promise<void>

  /** Starts another server, or a cluster, in the same process, which is quicker than start. */
  newServer(options?: ServerOptions): Promise<Lockkeeper>
  servers(): Promise<{ server: number, url: string, connect: string }[]>
  /** Creates a znode that clients see as their root. */
  namespace(name?: string): Promise<Namespace>

  /** Judges the lock whose queue is the children of a znode, from now on. */
  guard(path: string): Promise<Guard>

  /**
   * Fails if a guarded lock, whose verdict nobody has asked for, did not do what it should, if no request has met a
   * fault that is neither optional nor removed, if a wait has not ended, or if that cannot be told, since the server has ended. At the end of each test with withLockkeeper, useLockkeeper or the
   * fixture for Vitest this happens by itself.
   */
  check(): Promise<void>
  /** For the output of a failed test: what it still waits for, the znodes, and the last requests. */
  report(): Promise<string>

  /** A GET of test control, with its parameters. */
  get(endpoint: string, parameters?: Record<string, string | number | undefined>): Promise<any>
  /** A POST of test control, with its body. */
  post(endpoint: string, body?: object): Promise<any>
}
