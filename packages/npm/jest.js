'use strict'
// For Jest, and other runners with the hooks beforeAll, afterEach and afterAll.

const { Lockkeeper } = require('./index.js')
const { fresh, finish, begin, dead } = require('./lib/shared.js')

function useLockkeeper(options = {}, hooks = globalThis) {
  const zk = new Lockkeeper()
  const start = async () => zk[begin](await fresh(options), options)
  hooks.beforeAll(start)
  hooks.afterEach(async () => {
    try {
      await finish(zk, false, undefined, () => zk.reset()) // Jest does not tell a hook whether the test has failed
    } finally {
      if (zk[dead]) {
        await start()
        console.warn(`lockkeeper: the tests that follow have a new server, ${zk.connectString}, since that of this test was stopped or has ended`)
      }
    }
  })
  hooks.afterAll(() => zk.stop())
  return zk
}

module.exports = { useLockkeeper }
