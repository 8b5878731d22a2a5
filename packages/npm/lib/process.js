'use strict'
// Starts the program, and ends it.

const { spawn } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
// Taken now, before a test replaces them with fake ones.
const { setTimeout, clearTimeout } = require('node:timers')

const START = 60_000 // ms; only decides when a start has failed
const STOP = 20_000
const NOTICED = 1000 // in which the end of a process whose connections are closed is noticed
const KEPT = 64 * 1024 // characters of the output

// binary returns the path of the program: LOCKKEEPER_BINARY, or else that in the package for this
// platform, which is an optional dependency.
function binary() {
  if (process.env.LOCKKEEPER_BINARY) return process.env.LOCKKEEPER_BINARY
  const name = `lockkeeper-${process.platform}-${process.arch}`
  const file = `${name}/bin/lockkeeper${process.platform === 'win32' ? '.exe' : ''}`
  try {
    return require.resolve(file)
  } catch (cause) {
    throw new Error(`lockkeeper: the package ${name} is not installed. It is an optional dependency of lockkeeper for this platform, ` +
      'so npm leaves it out with --omit=optional, or if node_modules or the lock file are from another platform. ' +
      'With the environment variable LOCKKEEPER_BINARY another program is used.', { cause })
  }
}

// withDefaults adds the election timeout of a cluster, which is shorter than the program's 2 s: tests wait for it.
function withDefaults(options) {
  return options.cluster === undefined ? options : { ...options, electionTimeoutMs: options.electionTimeoutMs ?? 500 }
}

const OPTIONS = ['args', 'behaveAs', 'binary', 'cluster', 'electionTimeoutMs', 'logLevel', 'port', 'tree']

// flags returns the arguments of the program for the options of Lockkeeper.start.
function flags(options, treeFile) {
  const args = ['serve', '--memory', '--listen', `127.0.0.1:${options.port ?? 0}`, '--test-control', '127.0.0.1:0', '--until-stdin-closes',
    '--log-level', options.logLevel ?? 'error']
  if (options.cluster !== undefined) args.push('--cluster', String(options.cluster))
  const { electionTimeoutMs } = withDefaults(options)
  if (electionTimeoutMs !== undefined) args.push('--election-timeout', `${electionTimeoutMs}ms`)
  if (options.behaveAs !== undefined) args.push('--behave-as', options.behaveAs)
  if (treeFile) args.push('--tree', treeFile)
  return [...args, ...options.args ?? []]
}

// environment returns that of the program, which has a variable for each flag: only the options of
// start shall count.
function environment() {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('LOCKKEEPER_')))
}

// Running is a process of the program. It ends when its standard input does, so also with this process,
// however that ends. It does not keep this process running.
class Running {
  output = ''
  ended // how the process has ended: undefined while it runs
  gone // the promise of that
  #child

  // start starts the program, and returns when clients can connect.
  static async start(options) {
    const unknown = Object.keys(options).find(name => !OPTIONS.includes(name))
    if (unknown) throw new TypeError(`lockkeeper: there is no option ${unknown}, only ${OPTIONS.join(', ')}`)
    let dir
    if (options.tree !== undefined) {
      dir = fs.mkdtempSync(path.join(os.tmpdir(), 'lockkeeper-'))
      fs.writeFileSync(path.join(dir, 'tree'), options.tree)
    }
    try {
      const running = new Running()
      await running.#begin(options.binary ?? binary(), flags(options, dir && path.join(dir, 'tree')))
      return running
    } finally {
      if (dir) fs.rmSync(dir, { recursive: true })
    }
  }

  #begin(file, args) {
    const child = spawn(file, args, { stdio: ['pipe', 'ignore', 'pipe'], env: environment(), windowsHide: true })
    this.#child = child
    child.stdin.on('error', () => {}) // nothing is written to it
    this.gone = new Promise(resolve => child.on('close', (code, signal) => {
      this.ended = { code, signal }
      resolve(this.ended)
    }))
    return new Promise((resolve, reject) => {
      const fail = why => {
        clearTimeout(late)
        child.kill('SIGKILL')
        reject(new Error(`lockkeeper: ${why}\n${file} ${args.join(' ')}\n${this.output}`.trimEnd()))
      }
      const late = setTimeout(() => fail(`no client can connect after ${START / 1000} s`), START)
      child.on('error', error => fail(`the program cannot be started: ${error.message}. The option binary, or LOCKKEEPER_BINARY in the environment, is its path`))
      child.on('close', (code, signal) => fail(`the program has ended with ${signal ?? `exit code ${code}`}`))
      child.stderr.setEncoding('utf8').on('data', text => {
        this.output = (this.output + text).slice(-KEPT)
        if (this.connectString) return
        // With --log-format json both are in a line of JSON.
        const url = /lockkeeper: test control on ([^\s"]+).*\n/.exec(this.output)
        const connect = /lockkeeper: serving ZooKeeper clients on ([^\s"]+).*\n/.exec(this.output)
        if (!url || !connect) return
        clearTimeout(late)
        this.url = url[1]
        this.connectString = connect[1]
        for (const handle of [child, child.stdin, child.stderr]) handle.unref()
        resolve()
      })
    })
  }

  get pid() { return this.#child.pid }
  get process() { return this }

  // fate returns how the process has ended, or undefined if it has not.
  async fate() {
    let late
    const end = await Promise.race([this.gone, new Promise(resolve => { late = setTimeout(resolve, NOTICED) })])
    clearTimeout(late)
    return end && `the server ${this.connectString} has ended with ${end.signal ?? `exit code ${end.code}`}`
  }

  // stop ends the process, and returns when it has ended.
  async stop() {
    this.#child.ref()
    this.#child.stderr.ref()
    this.#child.stdin.end()
    const late = setTimeout(() => this.#child.kill('SIGKILL'), STOP)
    const { code, signal } = await this.gone
    clearTimeout(late)
    if (code !== 0) throw new Error(`lockkeeper: the program has ended with ${signal ?? `exit code ${code}`}\n${this.output}`.trimEnd())
  }
}

module.exports = { Running, binary, withDefaults }
