'use strict'
// For Vitest: const test = base.extend({ zk: lockkeeper() }).

const { fresh, finish } = require('./lib/shared.js')

function lockkeeper(options) {
  // Vitest reads the names of what it needs in the first parameter: only what it has itself.
  return async ({ task }, use) => {
    const zk = await fresh(options)
    try {
      await use(zk)
    } finally {
      await finish(zk, task.result?.state === 'fail', text => console.error(text), () => zk.stop())
    }
  }
}

module.exports = { lockkeeper }
