package tests;

import java.util.ArrayList;
import java.util.List;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.cloud.zookeeper.serviceregistry.ServiceInstanceRegistration;
import org.springframework.cloud.zookeeper.serviceregistry.ZookeeperRegistration;
import org.springframework.cloud.zookeeper.serviceregistry.ZookeeperServiceRegistry;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** An application of Spring Cloud without a web server. */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
class Application {
    static ConfigurableApplicationContext run(String connectString, String... more) {
        List<String> arguments = new ArrayList<>(List.of("--spring.cloud.zookeeper.connect-string=" + connectString, "--spring.main.banner-mode=off",
                "--spring.cloud.zookeeper.max-retries=1000", "--spring.jmx.enabled=false"));
        arguments.addAll(List.of(more));
        return new SpringApplicationBuilder(Application.class).web(WebApplicationType.NONE).run(arguments.toArray(String[]::new));
    }

    /** Runs an application that registers a service. */
    static ConfigurableApplicationContext run(String connectString, String service, int port) {
        ConfigurableApplicationContext context = run(connectString, "--spring.application.name=" + service);
        context.getBean(ZookeeperServiceRegistry.class).register(ServiceInstanceRegistration.builder()
                .defaultUriSpec().address("127.0.0.1").port(port).name(service).build());
        return context;
    }
}
