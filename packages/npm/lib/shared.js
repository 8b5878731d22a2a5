'use strict'
// One process for many tests, each with a server of its own in it.

const { Lockkeeper, begin } = require('../index.js')

const variable = 'LOCKKEEPER_TEST_URL' // which global-setup.js sets

let own // the process of this process, if global-setup.js did not start one

// fresh starts a server that nobody else has. Options that only a process can have start one.
async function fresh(options = {}) {
  if (['args', 'binary', 'logLevel'].some(name => options[name] !== undefined)) return Lockkeeper.start(options)
  if (process.env[variable]) return (await Lockkeeper.attach(process.env[variable])).newServer(options)
  own ??= Lockkeeper.start()
  return (await own).newServer(options)
}

module.exports = { fresh, begin, variable }
