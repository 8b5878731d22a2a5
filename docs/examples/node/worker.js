'use strict'
// A worker: it takes the lock, says so, and then writes to the store of its parent whenever it is told
// to. As many programs do, it does not ask whether it still has the lock.

const zookeeper = require('node-zookeeper-client')
const { lock } = require('./lock.js')

const client = zookeeper.createClient(process.argv[2], { sessionTimeout: 10_000 })
client.once('connected', async () => {
  process.send({ session: client.getSessionId().toString('hex') })
  const token = await lock(client, '/locks/report')
  process.on('message', text => process.send({ write: text, token: String(token) }))
  process.send({ held: true })
})
client.connect()
process.on('disconnect', () => process.exit())
