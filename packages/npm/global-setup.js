'use strict'
// For globalSetup of Jest and Vitest: starts a process in which every test file has its own servers.

const { Lockkeeper } = require('./index.js')
const { variable } = require('./lib/shared.js')

module.exports = async () => {
  const zk = await Lockkeeper.start()
  process.env[variable] = zk.url
  const stop = async () => {
    delete process.env[variable]
    await zk.stop()
  }
  globalThis.__LOCKKEEPER_STOP__ = stop // for Jest
  return stop // for Vitest
}
