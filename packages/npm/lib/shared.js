'use strict'
// One process for many tests, each with a server of its own in it.

const { Lockkeeper, begin, dead, waiting } = require('../index.js')

const variable = 'LOCKKEEPER_TEST_URL' // which global-setup.js sets

let own // the process of this process, if global-setup.js did not start one

// fresh starts a server that nobody else has. Options that only a process can have start one.
async function fresh(options = {}) {
  if (['args', 'binary', 'logLevel', 'port'].some(name => options[name] !== undefined)) return Lockkeeper.start(options)
  if (process.env[variable]) return (await Lockkeeper.attach(process.env[variable])).newServer(options)
  own ??= Lockkeeper.start()
  if ((await own)[dead]) own = Lockkeeper.start() // in a test before, which fails
  return (await own).newServer(options)
}

// finish ends a test, which fails if check does. print gets what helps with a failure: all that there is if
// the test has failed, or else what it still waits for, since its runner may have ended it because of that.
async function finish(zk, failed, print, end) {
  try {
    const text = failed ? await zk.report() : (await zk[waiting]()).join('\n')
    if (text) print(text)
  } catch (error) {
    print(error.message)
  }
  const failures = []
  for (const step of [() => zk.check(), end]) {
    try {
      await step()
    } catch (error) {
      failures.push(error)
    }
  }
  if (failures.length > 1) throw new Error(failures.map(({ message }) => message).join('\n'))
  if (failures.length) throw failures[0]
}

module.exports = { fresh, finish, begin, variable }
