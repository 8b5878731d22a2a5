'use strict'
// For node:test, and other runners whose tests have a method after.

const { fresh, finish } = require('./lib/shared.js')

async function withLockkeeper(t, options) {
  const zk = await fresh(options)
  // Node 20 and newer have passed. Another runner may have neither that nor diagnostic.
  const print = text => t.diagnostic ? text.split('\n').forEach(line => t.diagnostic(line)) : console.error(text)
  t.after(() => finish(zk, t.passed === false, print, () => zk.stop()))
  return zk
}

module.exports = { withLockkeeper }
