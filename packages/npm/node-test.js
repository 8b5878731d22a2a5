'use strict'
// For node:test, and other runners whose tests have a method after.

const { fresh } = require('./lib/shared.js')

async function withLockkeeper(t, options) {
  const zk = await fresh(options)
  t.after(() => zk.stop())
  return zk
}

module.exports = { withLockkeeper }
