export * from './vitest.js'
