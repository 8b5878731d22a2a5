'use strict'
// For Jest, and other runners with the hooks beforeAll, afterEach and afterAll.

const { Lockkeeper } = require('./index.js')
const { fresh, finish, begin } = require('./lib/shared.js')

function useLockkeeper(options = {}, hooks = globalThis) {
  const zk = new Lockkeeper()
  let server
  hooks.beforeAll(async () => {
    server = await fresh(options)
    zk[begin](server, options)
  })
  // Jest does not tell a hook whether the test has failed.
  hooks.afterEach(() => finish(zk, false, text => console.error(text), () => zk.reset()))
  hooks.afterAll(() => zk.stop())
  return zk
}

module.exports = { useLockkeeper }
