import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What a Kafka broker can only do if the ZooKeeper behind it works. */
final class KafkaCases {
    private static String broker;
    private static Admin admin;
    private static int produced;
    private static int consumed;

    public static void main(String[] args) {
        broker = args[0];
        admin = Admin.create(Map.of("bootstrap.servers", broker));
        Cases.run("broker", () -> brokers(1));
        Cases.run("create-topic", () -> createTopic("first"));
        Cases.run("produce-consume", () -> pass("first", 100));
        Cases.run("alter-config", () -> alterConfig("first", "604800001"));
        Cases.run("more-partitions", KafkaCases::morePartitions);
        Cases.run("broker-restart", () -> {
            Cases.ask("restart broker");
            brokers(1);
            pass("first", 100);
        });
        Cases.run("server-restart", () -> {
            Cases.ask("restart server");
            createTopic("second");
            pass("first", 100);
        });
        Cases.run("both-restart", () -> {
            Cases.ask("stop broker");
            Cases.ask("restart server");
            Cases.ask("start broker");
            brokers(1);
            // It serves before the controller has told it of the topics.
            Cases.await("both topics", () -> get(admin.listTopics().names()).equals(Set.of("first", "second")));
            Cases.equal(3, get(admin.describeTopics(List.of("first")).allTopicNames()).get("first").partitions().size(), "the partitions");
            Cases.equal("604800001", retention("first"), "the setting");
            pass("first", 100);
        });
        Cases.run("delete-topic", () -> {
            get(admin.deleteTopics(List.of("second")).all());
            Cases.await("the topic is gone", () -> get(admin.listTopics().names()).equals(Set.of("first")));
        });
        admin.close(Duration.ofSeconds(1));
        System.exit(0);
    }

    private static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    private static void brokers(int n) throws Exception {
        Cases.await(n + " brokers", () -> {
            try {
                return get(admin.describeCluster().nodes()).size() == n && get(admin.describeCluster().controller()) != null;
            } catch (java.util.concurrent.ExecutionException e) {
                return false; // it is not up yet
            }
        });
    }

    private static void createTopic(String name) throws Exception {
        get(admin.createTopics(List.of(new NewTopic(name, 2, (short) 1))).all());
        Cases.await("the topic has leaders", () -> get(admin.describeTopics(List.of(name)).allTopicNames()).get(name)
                .partitions().stream().allMatch(p -> p.leader() != null && !p.leader().isEmpty()));
        Throwable again = Cases.fails(java.util.concurrent.ExecutionException.class, "to create a topic twice",
                () -> get(admin.createTopics(List.of(new NewTopic(name, 2, (short) 1))).all())).getCause();
        Cases.equal(TopicExistsException.class, again.getClass(), "the failure to create a topic twice");
    }

    /** Produces n records, and consumes them as a group that goes on where it stopped. */
    private static void pass(String topic, int n) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", broker, "acks", "all", "linger.ms", "5"),
                new StringSerializer(), new StringSerializer())) {
            List<java.util.concurrent.Future<?>> sent = new ArrayList<>();
            for (int i = 0; i < n; i++) {
                String id = String.valueOf(produced++);
                sent.add(producer.send(new ProducerRecord<>(topic, id, "value " + id)));
            }
            for (java.util.concurrent.Future<?> f : sent) {
                f.get(Cases.PATIENCE_MS, TimeUnit.MILLISECONDS);
            }
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                Map.of("bootstrap.servers", broker, "group.id", "group", "auto.offset.reset", "earliest",
                        "enable.auto.commit", "false"),
                new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            Map<Integer, String> got = new TreeMap<>();
            Cases.await("all records come", () -> {
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) {
                    Cases.check(got.put(Integer.parseInt(r.key()), r.value()) == null, "a record comes twice");
                }
                return got.size() >= n;
            });
            Map<Integer, String> want = new TreeMap<>();
            for (int i = 0; i < n; i++, consumed++) {
                want.put(consumed, "value " + consumed);
            }
            Cases.equal(want, got, "what came");
            consumer.commitSync();
        }
    }

    private static ConfigResource topic(String name) {
        return new ConfigResource(ConfigResource.Type.TOPIC, name);
    }

    private static String retention(String topic) throws Exception {
        return get(admin.describeConfigs(List.of(topic(topic))).all()).get(topic(topic)).get("retention.ms").value();
    }

    private static void alterConfig(String topic, String retention) throws Exception {
        get(admin.incrementalAlterConfigs(Map.of(topic(topic), List.of(new AlterConfigOp(
                new ConfigEntry("retention.ms", retention), AlterConfigOp.OpType.SET)))).all());
        Cases.await("the setting is seen", () -> retention(topic).equals(retention));
    }

    private static void morePartitions() throws Exception {
        get(admin.createPartitions(Map.of("first", NewPartitions.increaseTo(3))).all());
        Cases.await("three partitions with leaders", () -> {
            List<?> all = get(admin.describeTopics(List.of("first")).allTopicNames()).get("first").partitions().stream()
                    .filter(p -> p.leader() != null && !p.leader().isEmpty()).toList();
            return all.size() == 3;
        });
        pass("first", 30);
    }
}
